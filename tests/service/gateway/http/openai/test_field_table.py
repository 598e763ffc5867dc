"""No field of OpenAI's API, or of vLLM's extras, is without a rule; and rules, schemas and the page
say the same."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import EmbeddingCreateParams, chat, completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from openai.types.shared_params import FunctionDefinition
from pydantic import BaseModel

from kvstitch.service.errors import InvalidRequest, Unsupported
from kvstitch.service.gateway.http.openai.field_table import Notes, Rules, noted, refused
from kvstitch.service.gateway.schemas import openai as bodies
from kvstitch.service.gateway.schemas.openai import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    ResponseFormat,
    StreamOptions,
    StructuredOutputs,
    ToolDefinition,
)
from kvstitch.service.gateway.schemas.openai import FunctionDefinition as OurFunction
from kvstitch.service.gateway.schemas.search import EmbeddingsRequest
from scripts import docs_tables
from scripts.openai_fields import TABLES

# vLLM's protocol.py of chats and of completions, and what its earlier versions took.
VLLM_BOTH = """
    echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty seed stop stream
    stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty
    watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side
    allowed_token_ids prompt_logprobs logprob_token_ids bad_words add_special_tokens response_format
    structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
    routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval
    best_of guided_json guided_regex guided_choice guided_grammar structural_tag
    guided_decoding_backend guided_whitespace_pattern logits_processors
"""
VLLM_CHAT = """
    messages max_completion_tokens top_logprobs tools tool_choice reasoning_effort include_reasoning
    parallel_tool_calls add_generation_prompt continue_final_message documents chat_template
    chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
"""
VLLM_TEXT = "prompt suffix prompt_embeds"
CHAT_PARAMS = chat_create_params.CompletionCreateParamsStreaming
TEXT_PARAMS = completion_create_params.CompletionCreateParamsStreaming
RESPONSE_PARAMS = response_create_params.ResponseCreateParamsStreaming


def words(*texts: str) -> set[str]:
    return {word for text in texts for word in text.split()}


def check_fields(extra: dict[str, Any], rules: Rules, where: str = "") -> list[str]:
    notes = Notes()
    notes.check(extra, rules, where)
    return notes


def own(params: Any) -> set[str]:
    """The fields of a typed dictionary."""
    return set(params.__required_keys__ | params.__optional_keys__)


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("/v1/chat/completions", own(CHAT_PARAMS) | words(VLLM_BOTH, VLLM_CHAT)),
        ("/v1/completions", own(TEXT_PARAMS) | words(VLLM_BOTH, VLLM_TEXT)),
        ("/v1/responses", own(RESPONSE_PARAMS)),
        ("/v1/embeddings", own(EmbeddingCreateParams)),
        (
            "A message of a chat",
            own(chat.ChatCompletionUserMessageParam)
            | own(chat.ChatCompletionAssistantMessageParam)
            | own(chat.ChatCompletionToolMessageParam)
            | set(chat.ChatCompletionMessage.model_fields),
        ),
        ("stream_options", own(chat.ChatCompletionStreamOptionsParam)),
        ("A part of a message's content", own(chat.ChatCompletionContentPartTextParam)),
        ("A tool", own(chat.ChatCompletionFunctionToolParam)),
        ("Its function", own(FunctionDefinition)),
    ],
)
def test_every_known_field_has_a_rule(title: str, known: set[str]) -> None:
    honoured, others = TABLES[title]
    assert len(known) > 1
    assert known - honoured.keys() - others.keys() == set()


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("/v1/chat/completions", ChatRequest),
        ("/v1/completions", CompletionRequest),
        ("/v1/responses", bodies.ResponsesRequest),
        ("/v1/embeddings", EmbeddingsRequest),
        ("A message of a chat", ChatMessage),
        ("A part of a message's content", ContentPart),
        ("A tool", ToolDefinition),
        ("Its function", OurFunction),
        ("stream_options", StreamOptions),
        ("response_format", ResponseFormat),
        ("structured_outputs", StructuredOutputs),
        ("An item of the input of /v1/responses", bodies.InputItem),
        ("text of /v1/responses", bodies.TextOptions),
    ],
)
def test_what_is_honoured_is_what_the_schema_takes(title: str, model: type[BaseModel]) -> None:
    taken = {field.alias or name for name, field in model.model_fields.items()}
    assert TABLES[title][0].keys() == taken


@pytest.mark.parametrize("title", TABLES)
def test_what_is_not_honoured_says_why(title: str) -> None:
    for name, rule in TABLES[title][1].items():
        assert rule.why, name
        value = object()
        if rule.treatment == "refused":
            with pytest.raises(Unsupported) as error:
                check_fields({name: value}, {name: rule}, "a.")
            assert error.value.field == f"a.{name}" and rule.why in error.value.message
        else:
            assert check_fields({name: value}, {name: rule}) == [
                f"{name} has no effect: {rule.why}"
            ]
        for harmless in (None, *rule.harmless):
            assert check_fields({name: harmless}, {name: rule}) == []


def test_a_field_that_nobody_knows_is_noted_or_with_strict_refused() -> None:
    rules = {"c": noted("")}
    assert check_fields({"b": 1}, rules, "a.") == ["a.b has no effect: nobody here knows it"]
    assert check_fields({"b" * 200: 1}, rules)[0].startswith("b" * 80 + " has")
    empty: tuple[Any, ...] = (None, "", [], {})
    for nothing in empty:
        assert check_fields({"b": nothing}, rules) == []
    strict = Notes(strict=True)
    strict.check({"b": 1}, rules, "a.", echoed=True)
    assert len(strict) == 1
    with pytest.raises(InvalidRequest, match=r"a\.b is not a known field"):
        strict.check({"b": {}}, rules, "a.")


@pytest.mark.parametrize(("value", "harmless"), [(False, 0), (0, False)])
def test_json_s_false_is_not_0(value: Any, harmless: Any) -> None:
    with pytest.raises(Unsupported):
        check_fields({"b": value}, {"b": refused("no", harmless)})


def test_the_page_shows_the_tables() -> None:
    page = docs_tables.OPENAI_PAGE.read_text(encoding="utf-8")
    assert docs_tables.openai_page(page) == page, docs_tables.REMEDY
