"""LiteLLM, as a proxy would call this service."""

import json
import sys

import litellm

litellm.telemetry = False
question = [{"role": "user", "content": "Which animal does Quentin Bruvik keep?"}]
common = {"model": "openai/demo_model", "api_base": sys.argv[1], "api_key": "none", "timeout": 60}
parameters = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
}
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
schema = {
    "type": "object",
    "properties": {"animal": {"type": "string", "enum": ["goat", "cow"]}},
    "required": ["animal"],
    "additionalProperties": False,
}
out = {"chat": litellm.completion(messages=question, **common).choices[0].message.content}
chunks = litellm.completion(
    messages=question, stream=True, stream_options={"include_usage": True}, **common
)
built = litellm.stream_chunk_builder(list(chunks), messages=question)
out["stream"] = [built.choices[0].message.content, built.usage.completion_tokens > 0]
called = litellm.completion(messages=question, tools=tools, tool_choice="required", **common)
call = called.choices[0].message.tool_calls[0]
out["call"] = [call.function.name, json.loads(call.function.arguments)]
wanted = {"type": "json_schema", "json_schema": {"name": "keeps", "schema": schema}}
formed = litellm.completion(messages=question, response_format=wanted, **common)
out["structured"] = json.loads(formed.choices[0].message.content)["animal"]
text = litellm.text_completion(
    model="text-completion-openai/demo_model",
    prompt=question[0]["content"],
    api_base=sys.argv[1],
    api_key="none",
)
out["text"] = text.choices[0].text
print(json.dumps(out))
