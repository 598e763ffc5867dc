"""Fields of OpenAI's API, and of vLLM's extras to it, that the routes' schemas do not take.

Such a field is noted or refused, never just ignored; one that no table holds is noted. Of other
servers' fields those that clients send often are here to say what to send instead. docs/openai.md
shows these tables, and beside them the fields that are honoured (scripts/openai_fields.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvstitch.service.errors import InvalidRequest, Unsupported


@dataclass(frozen=True)
class FieldRule:
    # Noted: accepted, without an effect, and `kvstitch.warnings` says so; refused, unless the value
    # asks for nothing.
    treatment: Literal["noted", "refused"]
    why: str  # why it does nothing here
    # Values that ask for nothing, and are accepted without a word; null always is.
    harmless: tuple[Any, ...] = ()


Rules = Mapping[str, FieldRule]
MAX_NAME_CHARS = 80  # of a field that a note names
_NOTHING: tuple[Any, ...] = ("", [], {})  # what asks for nothing in a field that nobody knows
_UNKNOWN = "nobody here knows it"


def noted(why: str, *harmless: Any) -> FieldRule:
    return FieldRule("noted", why, harmless)


def refused(why: str, *harmless: Any) -> FieldRule:
    return FieldRule("refused", why, harmless)


class Notes(list[str]):
    """What a client is to be told of its request; `strict`: a field that nobody knows is an error
    instead."""

    def __init__(self, strict: bool = False) -> None:
        super().__init__()
        self._strict = strict

    def check(
        self,
        extra: Mapping[str, Any] | None,
        rules: Rules,
        where: str = "",
        *,
        echoed: bool = False,
    ) -> None:
        """Note what becomes of fields that the route's schema does not take.

        Args:
            extra: Their names and values.
            rules: Of the object that holds them.
            where: Path of this object in the body, with a point at its end.
            echoed: The object is one that clients hand back with whatever they, or another service,
                have put into it: a field that nobody knows is never an error.

        Raises:
            Unsupported: A known field asks for what is not supported here.
            InvalidRequest: A field is not known, and that is an error.
        """
        for name, value in (extra or {}).items():
            path = f"{where}{name[:MAX_NAME_CHARS]}"
            rule = rules.get(name)
            if rule is None and self._strict and not echoed:
                raise InvalidRequest(
                    f"{path} is not a known field: leave it out, or correct its name", field=path
                )
            harmless = _NOTHING if rule is None else rule.harmless
            if value is None or any(_are_equal(value, each) for each in harmless):
                continue
            if rule is not None and rule.treatment == "refused":
                raise Unsupported(
                    f"{path} is not supported here ({rule.why}): leave it out", field=path
                )
            self.append(f"{path} has no effect: {_UNKNOWN if rule is None else rule.why}")


def _are_equal(value: Any, harmless: Any) -> bool:
    """Return whether two values are equal and of one kind: JSON's false is not 0."""
    return isinstance(value, bool) == isinstance(harmless, bool) and bool(value == harmless)


# Hints about which prompts to keep, and for how long, wherever a client may put them.
_CACHE_HINTS: Rules = {
    "cache_control": noted("prompts are cached by their tokens"),
    "prompt_cache_breakpoint": noted("prompts are cached by their tokens"),
}
# What clients and user interfaces send by themselves, and what changes nothing about an answer.
_BOOKKEEPING: Rules = {
    "user": noted("limits and tenants follow the API key"),
    "store": noted("nothing is kept", False),
    "metadata": noted("nothing is kept", {}),
    "service_tier": noted("there is one tier", "auto", "default"),
    "prompt_cache_key": noted("prompts are cached by their tokens"),
    "prompt_cache_retention": noted("prompts are kept while there is memory"),
    "prompt_cache_options": noted("prompts are kept while there is memory"),
    "cache_control": _CACHE_HINTS["cache_control"],
    "safety_identifier": noted("nothing is reported to anybody"),
    "moderation": refused("nothing is moderated"),
}
# Of vLLM's own fields, in both kinds of requests.
_VLLM: Rules = {
    "use_beam_search": refused("answers are sampled", False),
    "length_penalty": refused("it is for beam search", 1),
    "watermarking": refused("answers carry no watermark", False),
    "include_stop_str_in_output": refused("an answer ends before its stop string", False),
    "skip_special_tokens": refused("special tokens are never part of a text", True),
    "spaces_between_special_tokens": noted("special tokens are never part of a text", True),
    "truncate_prompt_tokens": refused("a prompt that is too long is an error"),
    "truncation_side": noted("a prompt is never cut"),
    "prompt_logprobs": refused("log-probabilities are of the answer's tokens"),
    "logprob_token_ids": refused("log-probabilities are of the likeliest tokens"),
    "allowed_token_ids": refused("use `logit_bias`, or a choice of `structured_outputs`"),
    "bad_words": refused("use `logit_bias`", []),
    "add_special_tokens": noted("the prompt begins as the model's format says", False),
    "priority": noted("requests are served in the order in which they come", 0),
    "request_id": noted("send the header X-Request-Id"),
    "session_id": noted("prompts are cached by their tokens"),
    "return_tokens_as_token_ids": noted("`token_id` is always told", False),
    "return_token_ids": refused("ask for log-probabilities, which have token ids", False),
    "return_token_offsets": noted("`text_offset` is always told", False),
    "routed_experts_prompt_start": noted("no model here has experts", 0),
    "return_mm_kwargs": noted("texts only", True, False),
    "cache_salt": refused("each tenant's caches are apart already: use API keys"),
    "kv_transfer_params": refused("one worker serves all"),
    "ec_transfer_params": refused("one worker serves all"),
    "vllm_xargs": refused("they are vLLM's", {}),
    "repetition_detection": refused("use `repetition_penalty`"),
    "thinking_token_budget": noted("models do not think at length here", -1),
    "stream_interval": noted("every token is sent at once", 1),
    "guided_decoding_backend": noted("there is one"),
    "guided_whitespace_pattern": refused("JSON is written compactly"),
    "structural_tag": refused("use `structured_outputs`"),
    "logits_processors": refused("no code comes with requests", []),
}

# Of llama.cpp, Ollama, SGLang and OpenRouter, with what says the same here.
_OF_OTHERS: Rules = {
    "format": refused("it is Ollama's: send `response_format`", ""),
    "options": refused("they are Ollama's: send `temperature`, `max_tokens`, … by themselves", {}),
    "keep_alive": noted("the model always is loaded"),
    "think": noted("models do not think at length here", False),
    "grammar": refused("it is llama.cpp's: send `structured_outputs.grammar`", ""),
    "json_schema": refused("it is llama.cpp's: send `response_format`", {}),
    "n_predict": refused("it is llama.cpp's: send `max_tokens`"),
    "repeat_penalty": refused("it is llama.cpp's: send `repetition_penalty`", 1),
    "cache_prompt": noted("prompts are cached by their tokens", True),
    "id_slot": noted("requests have no slots", -1),
    "reasoning_format": noted("models do not think at length here", "none", "auto"),
    "timings_per_token": noted("`kvstitch.timing` has the times", False),
    "regex": refused("it is SGLang's: send `structured_outputs.regex`", ""),
    "ebnf": refused("it is SGLang's: send `structured_outputs.grammar`", ""),
    "lora_path": refused("it is SGLang's: an adapter's name is the `model`"),
    "separate_reasoning": noted("models do not think at length here", True, False),
    "stream_reasoning": noted("models do not think at length here", True, False),
    "provider": noted("it is OpenRouter's: there is one provider", {}),
    "transforms": refused("a prompt is never cut", []),
}

CHAT: Rules = {
    **_BOOKKEEPING,
    **_VLLM,
    **_OF_OTHERS,
    "functions": refused("it was replaced by `tools`", []),
    "function_call": refused("it was replaced by `tool_choice`", "none", "auto"),
    "audio": refused("texts only"),
    "modalities": refused("texts only", ["text"], []),
    "prediction": noted("drafts come from the prompt"),
    "reasoning_effort": noted("models do not think at length here"),
    "include_reasoning": noted("models do not think at length here", True, False),
    "verbosity": noted("say in a message how long the answer should be", "medium"),
    "web_search_options": refused("documents of this service are searched"),
    "echo": refused("an answer is the new message alone", False),
    "documents": refused("send them as `kvstitch.inline_documents`", []),
    "chat_template": refused("the model's own is used"),
    "chat_template_kwargs": refused(
        "the model's template is used as it is", {}, {"enable_thinking": False}
    ),
    "media_io_kwargs": refused("texts only", {}),
    "mm_processor_kwargs": refused("texts only", {}),
    "return_prompt_text": refused("`kvstitch.include_text` shows the passages", False),
    "best_of": refused("use `n`", 1),
}
COMPLETION: Rules = {
    **{name: rule for name, rule in _BOOKKEEPING.items() if name != "moderation"},
    **_VLLM,
    **_OF_OTHERS,
    "best_of": refused("use `n`", 1),
    "echo": refused("an answer is the new text alone", False),
    "suffix": refused("text goes on at its end only", ""),
    "prompt_embeds": refused("a prompt is a text"),
    "top_logprobs": refused("`logprobs` says how many", 0),
}
MESSAGE: Rules = {
    "name": noted("models are not told who speaks"),
    **_CACHE_HINTS,
    "function_call": refused("it was replaced by `tool_calls`"),
    "audio": refused("texts only"),
    "annotations": noted("models are not told of them", []),
    "reasoning": noted("earlier thoughts are left out", ""),
    "reasoning_content": noted("earlier thoughts are left out", ""),
    "reasoning_details": noted("earlier thoughts are left out", []),
}
CONTENT_PART: Rules = {
    **_CACHE_HINTS,
    "annotations": noted("models are not told of them", []),
}
STREAM_OPTIONS: Rules = {
    "include_obfuscation": noted("chunks are not padded", False),
    "continuous_usage_stats": refused("usage comes last", False),
}
FUNCTION: Rules = {
    "strict": noted("arguments are held to their schema only where a call is enforced", False),
    "cache_control": _CACHE_HINTS["cache_control"],
}
TOOL: Rules = {
    "defer_loading": refused("all tools are told to the model", False),
    "cache_control": _CACHE_HINTS["cache_control"],
}
RESPONSE_FORMAT: Rules = {
    "schema": refused(
        "it is llama.cpp's: send `type` json_schema, and the schema as `json_schema.schema`"
    ),
}
STRUCTURED_OUTPUTS: Rules = {
    "disable_fallback": noted("there is one backend", True, False),
    "disable_any_whitespace": noted("blanks are few anyway", False),
    "disable_additional_properties": refused("say so in the schema", False),
    "whitespace_pattern": refused("blanks are few anyway"),
    "structural_tag": refused("use `tools`"),
}
RESPONSES: Rules = {
    **_BOOKKEEPING,
    "background": refused("nothing is kept", False),
    "context_management": noted("a prompt is never cut"),
    "conversation": refused("nothing is kept: send the whole conversation as `input`"),
    "include": noted("a response is whole", [], ["reasoning.encrypted_content"]),
    "max_tool_calls": noted("this service calls no tools itself"),
    "previous_response_id": refused("nothing is kept: send the whole conversation as `input`"),
    "prompt": refused("there are no stored prompts: send `instructions` and `input`"),
    "reasoning": noted("models do not think at length here", {}, {"effort": None}),
    "top_logprobs": refused("ask /v1/chat/completions for log-probabilities", 0),
    "truncation": noted("a prompt is never cut", "disabled"),
}
INPUT_ITEM: Rules = {
    "phase": noted("models are not told of it"),
    **_CACHE_HINTS,
}
TEXT_OPTIONS: Rules = {
    "verbosity": noted("say in a message how long the answer should be", "medium"),
}
EMBEDDINGS: Rules = {
    "truncate_prompt_tokens": refused("a long text is embedded in windows"),
    "truncation_side": refused("a long text is embedded in windows"),
    "add_special_tokens": refused("the embedder's own are added", True),
    "normalize": refused("vectors have the length 1", True),
    "embed_dtype": refused("vectors are float32", "float32"),
    "endianness": refused("vectors are little-endian", "native", "little"),
    "input_type": refused("queries and passages are embedded alike"),
    "priority": refused("requests are served in the order in which they come", 0),
    "request_id": refused("send the header X-Request-Id"),
}
