"""Translates OpenAI's requests into GenerateRequest, so that all answers are made in one way.

Every field is honoured, noted or refused, as `field_table` says.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from kvstitch.service.errors import InvalidRequest, KvstitchError, ModelNotFound, Unsupported
from kvstitch.service.gateway.answers.methods import NAMES
from kvstitch.service.gateway.http.openai.conversations import (
    tools_of_chat,
    tools_of_response,
    turns_of_items,
    turns_of_messages,
)
from kvstitch.service.gateway.http.openai.field_table import (
    CHAT,
    COMPLETION,
    RESPONSE_FORMAT,
    RESPONSES,
    STREAM_OPTIONS,
    STRUCTURED_OUTPUTS,
    TEXT_OPTIONS,
    Notes,
    Rules,
)
from kvstitch.service.gateway.http.openai.structured_output import (
    WantedForm,
    form_of_text,
    wanted_form,
    with_tools,
)
from kvstitch.service.gateway.json_content import from_validation
from kvstitch.service.gateway.schemas.generate import (
    ConversationRequest,
    GenerateRequest,
    MethodChoice,
)
from kvstitch.service.gateway.schemas.openai import (
    MAX_CHOICES,
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    Extension,
    ResponsesRequest,
    SampledRequest,
)
from kvstitch.service.gateway.tool_calls.tools import ToolForm, ToolSet
from kvstitch.service.messages.replies import Ready
from kvstitch.service.prompt import Turn

# Ours by the client's name, where the two differ.
_RENAMED = {"sampling_top_k": "top_k", "adapter": "model"}
_RESPONSES_NAMES = {**_RENAMED, "max_tokens": "max_output_tokens"}
_SAME_NAMES = (
    *("temperature", "top_p", "stream", "stop", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids"),
)


@dataclass(frozen=True)
class Served:
    """What requests are translated for: the model's name, its form of calls, the methods; `strict`:
    fields that nobody knows are refused."""

    model: str
    tool_form: ToolForm
    ready: Ready
    strict: bool = False


@dataclass(frozen=True)
class TranslatedRequest:
    body: CommonRequest  # as it was sent
    served: Served
    requests: list[GenerateRequest]  # per choice of the response, in the order of their indices
    prompts: int = 1  # how many prompts they have: `n` choices stand for each
    tools: ToolSet | None = None  # that the answers may call
    notes: list[str] = field(default_factory=list)  # for the client
    # A field of GenerateRequest under the name that it has in the client's request.
    as_sent: Callable[[str | None], str | None] = lambda name: name

    def renamed(self, error: KvstitchError) -> KvstitchError:
        """Return the error with the client's name of the field."""
        ours, sent = error.field, self.as_sent(error.field)
        if ours and sent and error.message.startswith(ours):
            error.message = sent + error.message.removeprefix(ours)
        error.field = sent
        return error


def from_chat(body: ChatRequest, served: Served) -> TranslatedRequest:
    """Translate a chat completion request. Raises ModelNotFound: there is no such model or preset;
    Unsupported: a field asks for something that is not supported; InvalidRequest: a field is
    wrong."""
    notes = _checked(body, CHAT, served)
    turns = turns_of_messages(body.messages, notes)
    tools = tools_of_chat(body, notes)
    form = with_tools(wanted_form(body), tools, served.tool_form, notes)
    fields = {
        **_sampling(body),
        "max_tokens": body.max_completion_tokens or body.max_tokens,
        "continue_final_message": _continues(body),
        "logprobs": _chat_logprobs(body),
    }
    return translated(
        body, served, [turns], question="messages", form=form, fields=fields, notes=notes,
        tools=tools, seeds=_seeds(body),
    )  # fmt: skip


def from_completion(body: CompletionRequest, served: Served) -> TranslatedRequest:
    """Translate a text completion request. Raises as `from_chat`."""
    notes = _checked(body, COMPLETION, served)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) != len(prompts) or not texts:
        raise Unsupported(
            "prompt must be a text, or a list of texts, not token ids", field="prompt"
        )
    n = body.n or 1
    if len(texts) * n > MAX_CHOICES:
        raise InvalidRequest(
            f"prompt and n ask for {len(texts) * n} answers, the limit is {MAX_CHOICES}: send "
            "several requests",
            field="prompt",
        )
    fields = {**_sampling(body), "max_tokens": body.max_tokens, "logprobs": body.logprobs}
    turns = [[Turn("user", text)] for text in texts]
    return translated(
        body, served, turns, question="prompt", form=wanted_form(body), fields=fields, notes=notes,
        seeds=_seeds(body),
    )  # fmt: skip


def from_responses(body: ResponsesRequest, served: Served) -> TranslatedRequest:
    """Translate a request of the Responses API. Raises as `from_chat`."""
    notes = Notes(served.strict)
    notes.check(body.model_extra, RESPONSES)
    if body.stream_options is not None:
        notes.check(body.stream_options.model_extra, STREAM_OPTIONS, "stream_options.")
    turns = [] if body.instructions is None else [Turn("system", body.instructions)]
    if isinstance(body.input, str):
        turns.append(Turn("user", body.input))
    else:
        turns += turns_of_items(body.input, notes)
    tools = tools_of_response(body, notes)
    if body.text is not None:
        notes.check(body.text.model_extra, TEXT_OPTIONS, "text.")
    form = with_tools(form_of_text(body.text), tools, served.tool_form, notes)
    same = ("temperature", "top_p", "stream", "presence_penalty", "frequency_penalty")
    given = {name: getattr(body, name) for name in same}
    fields = {name: value for name, value in given.items() if value is not None}
    fields["max_tokens"] = body.max_output_tokens
    return translated(
        body, served, [turns], question="input", form=form, fields=fields, notes=notes, tools=tools,
        names=_RESPONSES_NAMES,
    )  # fmt: skip


def translated(
    body: CommonRequest,
    served: Served,
    prompts: Sequence[Sequence[Turn]],
    *,
    question: str,
    form: WantedForm | None,
    fields: dict[str, Any],
    notes: Sequence[str],
    tools: ToolSet | None = None,
    seeds: Sequence[int | None] = (None,),
    names: Mapping[str, str] = _RENAMED,
) -> TranslatedRequest:
    """Return one request for each prompt and seed.

    Args:
        fields: Of GenerateRequest, without those that the model's name and `kvstitch` stand for.
        question: The field of `body` that holds the prompts.
        names: Fields of GenerateRequest that `body` has under other names.

    Raises:
        InvalidRequest: A field is wrong; it has the client's name.
    """
    fields |= {**_common_fields(body, served), "guided": None if form is None else form.guided}
    rename = _renaming(question, form, names)
    try:
        requests: list[GenerateRequest] = [
            ConversationRequest.of(turns, tools, **fields, seed=seed)
            for turns in prompts
            for seed in seeds
        ]
    except ValidationError as error:
        fault = from_validation(error.errors(include_url=False), GenerateRequest)
        sent = rename(fault.field)
        message = fault.message.replace(fault.field or "", sent or "", 1)
        raise InvalidRequest(message, field=sent) from error
    unique = list(dict.fromkeys(notes))
    return TranslatedRequest(body, served, requests, len(prompts), tools, unique, rename)


def _seeds(body: SampledRequest) -> list[int | None]:
    """Return the seed of each of the answers to a prompt, one after another; OpenAI's may be
    negative, the sampler's must not."""
    seed = body.seed
    return [None if seed is None else (seed + n) % 2**63 for n in range(body.n or 1)]


def _common_fields(body: CommonRequest, served: Served) -> dict[str, Any]:
    """Return the fields of GenerateRequest that the model's name and `kvstitch` stand for."""
    chosen = body.kvstitch or Extension.model_validate({})
    fields: dict[str, Any] = {
        name: getattr(chosen, name)
        for name in chosen.model_fields_set - {"fusion", "include_citations"}
    }
    adapter, preset = _named_model(body.model, served)
    fusion = chosen.fusion or preset
    return {**fields, "adapter": adapter, **({} if fusion is None else {"fusion": fusion})}


def _named_model(name: str | None, served: Served) -> tuple[str | None, MethodChoice | None]:
    """Return the adapter and the fusion method that a model name stands for, None for none.

    kvstitch-demo              the default fusion method
    kvstitch-demo:exact        one of NAMES
    kvstitch-demo:vanilla      this fusion method, with its default parameters
    legal, legal:exact         the same with the adapter named legal
    """
    if name is None or name == served.model:
        return None, None
    adapters = [each.name for each in served.ready.adapters]
    if name in adapters:
        return name, None
    base, _, method = name.rpartition(":")
    offered = {info.name for info in served.ready.fusion if not info.unavailable}
    known = method in offered.union(NAMES)
    if not known or base not in (served.model, *adapters):
        names = ", ".join((served.model, *adapters))
        raise ModelNotFound(
            f"there is no model {name!r}: this service has {names}, also as NAME:METHOD; "
            "GET /v1/models lists them",
            field="model",
        )
    return None if base == served.model else base, MethodChoice(method=method)


def _renaming(
    question: str, form: WantedForm | None, names: Mapping[str, str]
) -> Callable[[str | None], str | None]:
    """Make a function from a field of GenerateRequest to its name in the client's request, where
    `question` holds the question, and `form` is the form that the answer must have."""

    def rename(name: str | None) -> str | None:
        root = re.split(r"[.\[]", name or "")[0]
        if root in ("question", "messages"):
            return question
        if root == "guided" and form is not None:
            return form.field
        if root in Extension.model_fields:
            return f"kvstitch.{name}"
        return names.get(root, name and name.removesuffix(".[key]"))  # pydantic's word

    return rename


def _checked(body: SampledRequest, rules: Rules, served: Served) -> Notes:
    notes = Notes(served.strict)
    notes.check(body.model_extra, rules)
    for where, part, part_rules in (
        ("stream_options", body.stream_options, STREAM_OPTIONS),
        ("response_format", body.response_format, RESPONSE_FORMAT),
        ("structured_outputs", body.structured_outputs, STRUCTURED_OUTPUTS),
    ):
        if part is not None:
            notes.check(part.model_extra, part_rules, f"{where}.")
    return notes


def _sampling(body: SampledRequest) -> dict[str, Any]:
    fields = {name: getattr(body, name) for name in _SAME_NAMES}
    fields["sampling_top_k"] = None if body.top_k is None else max(0, body.top_k)
    return {name: value for name, value in fields.items() if value is not None}


def _continues(body: ChatRequest) -> bool:
    """Return whether the answer goes on where the last message ends."""
    continues = bool(body.continue_final_message)
    if body.add_generation_prompt is not None and body.add_generation_prompt == continues:
        raise InvalidRequest(
            f"add_generation_prompt is {str(continues).lower()}: the answer either continues the "
            "last message (continue_final_message) or is a new one",
            field="add_generation_prompt",
        )
    return continues


def _chat_logprobs(body: ChatRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequest(
            "top_logprobs needs logprobs: send logprobs: true, too", field="top_logprobs"
        )
    return None
