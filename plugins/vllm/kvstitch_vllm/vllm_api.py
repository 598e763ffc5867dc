"""vLLM's OpenAI server: whether it can be handed KV, and an answer to a prompt of token ids."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import httpx

from kvstitch.service.errors import InvalidRequest, KvstitchError, WorkerFault, WorkerUnavailable
from kvstitch.service.messages.replies import TokenItem, TokenLogprobs
from kvstitch.service.messages.requests import Sampling

PARAMS = "kvstitch"
AGAIN_S = 5.0
MALFORMED = (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError, AttributeError)


class Served(NamedTuple):
    """What a vLLM serves that can be handed KV."""

    model: str
    max_context: int


class Ended(NamedTuple):
    """The answer is complete; `loaded`: tokens of the prompt that vLLM did not compute."""

    reason: str
    loaded: int


class VllmApi:
    """A client of one vLLM."""

    def __init__(self, url: str, api_key: str, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            timeout=httpx.Timeout(timeout_s, connect=5.0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def check(self, weights: str, dtype: str) -> Served:
        """Ask whether it has these weights, and KV of this type; raises WorkerUnavailable, which
        says why it cannot be used."""
        try:
            models = await self._client.get("/v1/models")
            models.raise_for_status()
            model = models.json()["data"][0]
            asked = {"model": model["id"], "prompt": [1], "max_tokens": 1}
            asked["kv_transfer_params"] = {PARAMS: {"check": weights}}
            answer = await self._client.post("/v1/completions", json=asked)
            answer.raise_for_status()
            found = (answer.json().get("kv_transfer_params") or {}).get(PARAMS)
        except MALFORMED as error:
            raise self._away(error) from error
        if found is None:
            why = "runs without kvstitch's connector: plugins/vllm/README.md says how to start it"
        elif not found["same_weights"]:
            why = "has other weights than kvstitch: serve the same folder with both"
        elif found["dtype"] != dtype:
            why = f"computes in {found['dtype']}, kvstitch in {dtype}: set the same --dtype"
        else:
            return Served(model["id"], int(model["max_model_len"]))
        raise WorkerUnavailable(f"vLLM at {self.url} {why}", retry_after_s=AGAIN_S)

    async def answer(
        self, id: str, body: dict[str, Any]
    ) -> AsyncGenerator[TokenItem | Ended, None]:
        """Yield the answer's tokens, then its end. Closing the generator ends it in vLLM, too.
        Raises InvalidRequest where vLLM refuses; WorkerUnavailable or WorkerFault where it fails.
        """
        reason, loaded = "", 0
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refused(response.status_code, json.loads(await response.aread()))
                async for line in response.aiter_lines():
                    data = line.removeprefix("data: ")
                    if data == line or data == "[DONE]":
                        continue
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise _refused(chunk["error"].get("code", 500), chunk)
                    details = (chunk.get("usage") or {}).get("prompt_tokens_details") or {}
                    loaded = details.get("cached_tokens", loaded)
                    for choice in chunk["choices"]:
                        reason = choice.get("finish_reason") or reason
                        for item in _items(id, choice):
                            yield item
        except MALFORMED as error:
            raise self._away(error) from error
        if reason not in ("stop", "length"):
            raise WorkerFault(f"vLLM ended the answer midway ({reason or 'no reason'})")
        yield Ended(reason, loaded)

    def _away(self, error: Exception) -> WorkerUnavailable:
        why = str(error) or type(error).__name__
        return WorkerUnavailable(
            f"vLLM at {self.url} does not answer: {why}", retry_after_s=AGAIN_S
        )


def body_of(
    model: str, prompt: Sequence[int], sampling: Sampling, *, ends: Sequence[int], salt: str,
    place: str,
) -> dict[str, Any]:  # fmt: skip
    """Return a request for vLLM: every field is set, because it has defaults of its own for some.
    `ends` end the answer; only requests with the same `salt` share KV in vLLM; the prompt's lies at
    `place`, empty: nowhere."""
    same = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty",
            "presence_penalty", "frequency_penalty", "logprobs", "min_tokens")  # fmt: skip
    body = {name: getattr(sampling, name) for name in same} | {
        "model": model,
        "prompt": list(prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "cache_salt": salt,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
        "ignore_eos": sampling.ignore_end,
        "stop_token_ids": list(ends),
    }
    if sampling.grammar:
        body["structured_outputs"] = _structure(sampling.grammar)
    if place:
        body["kv_transfer_params"] = {PARAMS: {"place": place}}
    return body


def _structure(grammar: str) -> dict[str, Any]:
    """Return what vLLM's backend `guidance` makes the same grammar of."""
    if not grammar.startswith("{"):
        return {"grammar": grammar}
    (made,) = json.loads(grammar)["grammars"]
    if (schema := made.get("json_schema")) is not None:
        return {"json": schema}
    return {"grammar": made["lark_grammar"]}


def _items(id: str, choice: dict[str, Any]) -> list[TokenItem]:
    """Return the tokens of one event, without the one that ends the answer."""
    tokens: list[int] = choice.get("token_ids") or []
    said = choice.get("logprobs") or {}
    own, top = said.get("token_logprobs") or [], said.get("top_logprobs") or []
    items = [
        TokenItem(id, token, TokenLogprobs(own[n], _top(top[n])) if own else None)
        for n, token in enumerate(tokens)
    ]
    return items[:-1] if choice.get("finish_reason") == "stop" else items


def _top(likely: dict[str, float] | None) -> list[tuple[int, float]]:
    named = [(int(name.removeprefix("token_id:")), p) for name, p in (likely or {}).items()]
    return sorted(named, key=lambda each: -each[1])


def _refused(status: int, said: dict[str, Any]) -> KvstitchError:
    message = (said.get("error") or said).get("message")
    if status in (400, 422):
        return InvalidRequest(f"vLLM refuses this request: {message}")
    return WorkerUnavailable(f"vLLM fails ({status}): {message}", retry_after_s=AGAIN_S)
