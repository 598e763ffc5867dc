"""The clients people have, unmodified: openai-python, LangChain's ChatOpenAI, LlamaIndex's
OpenAILike. Each completes, streams, meets an error, stops at a stop string, leaves a stream, and
reads the usage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.llms.openai_like import OpenAILike

from tests.e2e.conftest import Documents
from tests.e2e.faults.test_lifecycle import MANY, READ, assert_stopped
from tests.e2e.service import Service

QUESTION = "Which colour does the family wear?"
USER: Any = [{"role": "user", "content": QUESTION}]
TOKENS = 24
STEPS = "kvstitch_decode_steps_total"


@pytest.fixture(scope="module")
def endless(
    tmp_path_factory: pytest.TempPathFactory, endless_model: Path, twelve: Documents
) -> Iterator[Service]:
    """Serves a model that goes on until it is stopped, under the name "endless"."""
    data = tmp_path_factory.mktemp("clients") / "data"
    with Service(endless_model, data, pool_tokens=200_000) as service:
        service.ingest(twelve[:3])
        yield service


@pytest.fixture(scope="module")
def base_url(endless: Service) -> str:
    return f"{endless.http.base_url}/v1".replace("//v1", "/v1")


@pytest.fixture(scope="module")
def expected(endless: Service) -> str:
    """The answer of this service's own route."""
    text: str = endless.ask(QUESTION, max_tokens=TOKENS)["text"]
    assert len(text) > 12
    return text


@pytest.fixture(scope="module")
def stop(expected: str) -> str:
    """A stop string in the middle of that answer."""
    return expected[len(expected) // 2 : len(expected) // 2 + 5]


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="none", timeout=60) as client:
        yield client


# -- openai-python --------------------------------------------------------------------------------


def test_openai_completes(client: openai.OpenAI, expected: str) -> None:
    answer = client.chat.completions.create(model="endless", messages=USER, max_tokens=TOKENS)
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens == TOKENS
    assert 0 < (answer.usage.prompt_tokens_details.cached_tokens or 0) < answer.usage.prompt_tokens
    assert answer.model_extra is not None
    assert answer.model_extra["kvstitch"]["citations"][0]["char_end"] > 0


def test_openai_reads_log_probabilities(client: openai.OpenAI, expected: str) -> None:
    asked: Any = {"model": "endless", "max_tokens": TOKENS}
    chosen: Any = {**asked, "messages": USER, "logprobs": True, "top_logprobs": 3}
    answer = client.chat.completions.create(**chosen)
    assert answer.choices[0].logprobs is not None
    told = answer.choices[0].logprobs.content or []
    assert bytes(byte for one in told for byte in one.bytes or []).decode().lstrip() == expected
    for one in told:
        likeliest = one.top_logprobs[0]
        assert (likeliest.token, likeliest.logprob) == (one.token, one.logprob)  # it is greedy
        assert len(one.top_logprobs) == 3 and one.logprob <= 0
    streamed: list[str] = []
    for chunk in client.chat.completions.create(**chosen, stream=True):
        if chunk.choices and (some := chunk.choices[0].logprobs) is not None:
            streamed += [one.token for one in some.content or []]
    assert streamed == [one.token for one in told]
    text = client.completions.create(**asked, prompt=QUESTION, logprobs=2).choices[0]
    assert text.logprobs is not None and text.logprobs.text_offset is not None
    assert text.logprobs.token_logprobs == pytest.approx([one.logprob for one in told], abs=1e-4)
    assert text.logprobs.text_offset == sorted(text.logprobs.text_offset)


def test_openai_streams_with_usage(client: openai.OpenAI, expected: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model="endless:question_scout",
            messages=USER,
            max_completion_tokens=TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"kvstitch": {"top_k": 3, "include_text": True}},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].model_extra is not None
    assert chunks[0].model_extra["kvstitch"]["citations"][0]["text"]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == expected
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == TOKENS
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


async def test_openai_async(base_url: str, expected: str, stop: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=60) as client:
        answer = await client.chat.completions.create(
            model="endless", messages=USER, max_tokens=TOKENS, stop=[stop]
        )
        assert answer.choices[0].message.content == expected[: expected.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        text = ""
        stream = await client.completions.create(
            model="endless", prompt=QUESTION, max_tokens=TOKENS, stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].text
        assert text == expected


def test_openai_text_completion_and_models(client: openai.OpenAI, expected: str) -> None:
    answer = client.completions.create(model="endless", prompt=QUESTION, max_tokens=TOKENS)
    assert answer.choices[0].text == expected
    names = [model.id for model in client.models.list()]
    assert names == ["endless", "endless:exact", "endless:balanced", "endless:fastest"]
    assert client.models.retrieve("endless:pie").id == "endless:pie"


def test_openai_raises_what_it_should(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="GET /v1/models"):
        create(model="gpt-4o", messages=USER)
    with pytest.raises(openai.BadRequestError, match="audio is not supported"):
        create(model="endless", messages=USER, audio={"format": "wav", "voice": "x"})
    with pytest.raises(openai.BadRequestError) as refused:
        create(model="endless", messages=USER, temperature=-1)
    assert refused.value.param == "temperature"
    assert refused.value.request_id


def test_openai_leaves_a_stream(endless: Service, client: openai.OpenAI) -> None:
    before = endless.settled_metrics().value(STEPS)
    with client.chat.completions.create(
        model="endless", messages=USER, max_tokens=MANY, stream=True
    ) as stream:
        pieces = (chunk for chunk in stream if chunk.choices[0].delta.content)
        assert len(list(islice(pieces, READ))) == READ
    assert_stopped(endless, before)


@pytest.mark.slow
def test_openai_gives_up_waiting(endless: Service, base_url: str) -> None:
    before = endless.settled_metrics().value(STEPS)

    def decoded() -> bool:
        return endless.metrics().value(STEPS) > before

    for timeout_s in (2.0, 10.0, 50.0):
        with (
            openai.OpenAI(
                base_url=base_url, api_key="none", timeout=timeout_s, max_retries=0
            ) as client,
            pytest.raises(openai.APITimeoutError),
        ):
            client.chat.completions.create(model="endless", messages=USER, max_tokens=MANY)
        with suppress(AssertionError):  # it may have given up before a busy worker had it
            endless.until(decoded, "nothing was decoded", 5.0)
            break
    assert_stopped(endless, before)


# -- LangChain ------------------------------------------------------------------------------------


def langchain(base_url: str, **options: Any) -> ChatOpenAI:
    settings = {"model": "endless", "max_tokens": TOKENS, "timeout": 60, **options}
    return ChatOpenAI(base_url=base_url, api_key="none", **settings)


def test_langchain_completes_and_reads_usage(base_url: str, expected: str) -> None:
    answer = langchain(base_url).invoke(QUESTION)
    assert answer.content == expected
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == TOKENS
    assert answer.usage_metadata["input_token_details"]["cache_read"] > 0
    assert answer.response_metadata["finish_reason"] == "length"


def test_langchain_takes_history_and_the_extension(base_url: str) -> None:
    chat = langchain(base_url, extra_body={"kvstitch": {"top_k": 1, "fusion": {"method": "pie"}}})
    answer = chat.invoke(
        [
            SystemMessage("Be brief."),
            HumanMessage("Who are you?"),
            AIMessage("A service."),
            HumanMessage(QUESTION),
        ]
    )
    assert answer.content


async def test_langchain_streams_and_stops(base_url: str, expected: str, stop: str) -> None:
    chat = langchain(base_url, stream_usage=True)
    chunks = [chunk async for chunk in chat.astream(QUESTION)]
    assert "".join(str(chunk.content) for chunk in chunks) == expected
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert sum(u["output_tokens"] for u in usage) == TOKENS
    stopped = "".join(str(chunk.content) for chunk in chat.stream(QUESTION, stop=[stop]))
    assert stopped == expected[: expected.index(stop)]


def test_langchain_meets_an_error(base_url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="GET /v1/models"):
        langchain(base_url, model="gpt-4o").invoke(QUESTION)


# -- LlamaIndex -----------------------------------------------------------------------------------


def llama_index(base_url: str, **options: Any) -> OpenAILike:
    settings = {
        "model": "endless",
        "max_tokens": TOKENS,
        "context_window": 65_536,
        "temperature": 0,
        **options,
    }
    return OpenAILike(api_base=base_url, api_key="none", **settings)


def test_llama_index_completes_both_ways(base_url: str, expected: str) -> None:
    text = llama_index(base_url, is_chat_model=False).complete(QUESTION)
    assert text.text == expected
    chat = llama_index(base_url, is_chat_model=True)
    answer = chat.chat([ChatMessage(role=MessageRole.USER, content=QUESTION)])
    assert answer.message.content == expected
    raw: Any = answer.raw
    assert raw.usage.completion_tokens == TOKENS
    assert raw.usage.prompt_tokens_details.cached_tokens > 0


async def test_llama_index_streams_and_stops(base_url: str, expected: str, stop: str) -> None:
    chat = llama_index(base_url, is_chat_model=True)
    message = ChatMessage(role=MessageRole.USER, content=QUESTION)
    pieces = [piece.delta or "" for piece in chat.stream_chat([message])]
    assert "".join(pieces) == expected
    text = llama_index(base_url, is_chat_model=False)
    async_pieces = [piece.delta or "" async for piece in await text.astream_complete(QUESTION)]
    assert "".join(async_pieces) == expected
    stopped = text.complete(QUESTION, stop=[stop])
    assert stopped.text == expected[: expected.index(stop)]


def test_llama_index_meets_an_error(base_url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="GET /v1/models"):
        llama_index(base_url, model="gpt-4o", is_chat_model=True).complete(QUESTION)
