"""The fields of OpenAI's API that are honoured, and what they do; docs/openai.md shows them.

That these are the fields which the routes' schemas take is tested; fields that are noted or
refused are in service/gateway/http/openai/field_table.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvstitch.service.gateway.http.openai import field_table
from kvstitch.service.gateway.http.openai.field_table import Rules

_COMMON = {
    "model": "the model's or an adapter's `NAME`, or `NAME:METHOD`",
    "temperature": "0, the default, is greedy; at most 10",
    "top_p": "",
    "stream": "",
    "stream_options": "`include_usage`",
    "kvstitch": "documents and methods",
}
_SAMPLED = {
    **_COMMON,
    "max_tokens": "lowered to what fits, with a warning",
    "seed": "of several answers the n-th has seed + n",
    "stop": "up to 16 strings",
    "n": "up to 16 answers",
    "presence_penalty": "",
    "frequency_penalty": "",
    "logit_bias": "up to 1,024 tokens",
    "response_format": "text, json_object, json_schema",
    "top_k": "of the sampler; `kvstitch.top_k` is the number of passages",
    "min_p": "",
    "repetition_penalty": "",
    "min_tokens": "",
    "ignore_eos": "",
    "stop_token_ids": "up to 128",
    "structured_outputs": "json, json_object, regex, choice, grammar",
    "guided_json": "the older name of `structured_outputs.json`",
    "guided_regex": "the older name of `structured_outputs.regex`",
    "guided_choice": "the older name of `structured_outputs.choice`",
    "guided_grammar": "the older name of `structured_outputs.grammar`",
}
TABLES: dict[str, tuple[Mapping[str, str], Rules]] = {
    "/v1/chat/completions": (
        {
            **_SAMPLED,
            "messages": "texts, tool calls and their results; the last one is answered",
            "max_completion_tokens": "goes before `max_tokens`",
            "logprobs": "",
            "top_logprobs": "0 to 20, with `logprobs`",
            "tools": "functions; others are left out, with a warning",
            "tool_choice": "none, auto, required, a function, or allowed_tools",
            "parallel_tool_calls": "false: only the first call is passed on",
            "add_generation_prompt": "false only where the last message is continued",
            "continue_final_message": "the answer goes on where the last message, an assistant's, "
            "ends",
        },
        field_table.CHAT,
    ),
    "/v1/completions": (
        {
            **_SAMPLED,
            "prompt": "a text, or a list of up to 16, each of which is answered",
            "logprobs": "0 to 5",
        },
        field_table.COMPLETION,
    ),
    "/v1/responses": (
        {
            **_COMMON,
            "stream_options": "nothing in it changes anything",
            "input": "a text, or messages, calls and their results",
            "instructions": "text of the system",
            "max_output_tokens": "lowered to what fits, with a warning",
            "text": "`format`: text, json_object, json_schema",
            "tools": "functions; others are left out, with a warning",
            "tool_choice": "none, auto, required, a function, or allowed_tools",
            "parallel_tool_calls": "false: only the first call is passed on",
            "presence_penalty": "",
            "frequency_penalty": "",
            "metadata": "comes back with the response",
        },
        field_table.RESPONSES,
    ),
    "/v1/embeddings": (
        {
            "input": "a text, or a list of texts; token ids are refused",
            "model": "the embedder's name",
            "encoding_format": "float or base64",
            "dimensions": "the embedder's own",
            "user": "accepted; limits and tenants follow the API key",
        },
        field_table.EMBEDDINGS,
    ),
    "A message of a chat": (
        {
            "role": "developer is system",
            "content": "a text, or parts of type text",
            "tool_calls": "of an assistant",
            "tool_call_id": "of a tool",
            "refusal": "counts as the assistant's text where there is no other",
        },
        field_table.MESSAGE,
    ),
    "A part of a message's content": (
        {
            "type": "text, or refusal",
            "text": "",
            "refusal": "",
        },
        field_table.CONTENT_PART,
    ),
    "A tool": (
        {
            "type": "function",
            "function": "",
        },
        field_table.TOOL,
    ),
    "Its function": (
        {
            "name": "",
            "description": "",
            "parameters": "told to the model; enforced where a call is",
        },
        field_table.FUNCTION,
    ),
    "stream_options": (
        {
            "include_usage": "a last chunk with the usage",
        },
        field_table.STREAM_OPTIONS,
    ),
    "response_format": (
        {
            "type": "text, json_object, json_schema",
            "json_schema": "its `schema`",
        },
        field_table.RESPONSE_FORMAT,
    ),
    "structured_outputs": (
        {
            "json": "a schema",
            "json_object": "",
            "regex": "",
            "choice": "",
            "grammar": "Lark or GBNF",
        },
        field_table.STRUCTURED_OUTPUTS,
    ),
    "An item of the input of /v1/responses": (
        {
            "type": "message, function_call, function_call_output; reasoning is left out",
            "role": "developer is system",
            "content": "a text, or parts of type input_text, output_text, refusal",
            "call_id": "",
            "name": "",
            "arguments": "",
            "output": "a text, or parts of type input_text",
            "id": "items are told apart by their places",
            "status": "all are complete",
        },
        field_table.INPUT_ITEM,
    ),
    "text of /v1/responses": (
        {
            "format": "text, json_object, json_schema",
        },
        field_table.TEXT_OPTIONS,
    ),
}
"""By object: the honoured fields with what they do, and the rules for others."""
