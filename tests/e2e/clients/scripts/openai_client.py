"""openai-python: chats, tools, structured output and the Responses API."""

import json
import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel


class Keeps(BaseModel):
    animal: Literal["goat", "cow"]


client = OpenAI(base_url=sys.argv[1], timeout=60)
question = "Which animal does Quentin Bruvik keep?"
ask = [{"role": "user", "content": question}]
parameters = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
function = {"name": "get_weather", "description": "Tells the weather.", "parameters": parameters}
tools = [{"type": "function", "function": function}]
flat = [{"type": "function", **function, "strict": True}]
out = {}

out["chat"] = (
    client.chat.completions.create(model="demo_model", messages=ask).choices[0].message.content
)
two = client.chat.completions.create(model="demo_model", messages=ask, n=2, temperature=0.0, seed=1)
out["n"] = [choice.message.content for choice in two.choices]

call = client.chat.completions.create(
    model="demo_model", messages=ask, tools=tools, tool_choice="required"
).choices[0]
out["call"] = [call.finish_reason, call.message.tool_calls[0].function.arguments]
result = {"role": "tool", "tool_call_id": call.message.tool_calls[0].id, "content": "4 degrees"}
after = client.chat.completions.create(
    model="demo_model", messages=[*ask, call.message, result], tools=tools
)
out["after"] = after.choices[0].finish_reason

with client.chat.completions.stream(
    model="demo_model", messages=ask, tools=tools, tool_choice="required"
) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_completion().choices[0]
out["stream"] = [
    "tool_calls.function.arguments.delta" in kinds,
    "tool_calls.function.arguments.done" in kinds,
    final.finish_reason,
    final.message.tool_calls[0].function.arguments,
]
parsed = client.chat.completions.parse(
    model="demo_model", messages=ask, response_format=Keeps, max_tokens=80
)
out["parsed"] = parsed.choices[0].message.parsed.animal

answer = client.responses.create(model="demo_model", input=question, store=False)
out["response"] = [answer.status, answer.output_text, answer.usage.output_tokens > 0]
with client.responses.stream(model="demo_model", input=question) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
out["response_stream"] = [kinds[0], kinds[-1], final.output_text]
out["response_parsed"] = client.responses.parse(
    model="demo_model", input=question, text_format=Keeps
).output_parsed.animal
first = client.responses.create(
    model="demo_model", input=question, tools=flat, tool_choice="required"
)
item = first.output[0]
out["response_call"] = [item.type, item.arguments]
given = {"type": "function_call_output", "call_id": item.call_id, "output": "4 degrees"}
again = client.responses.create(
    model="demo_model", input=[*ask, *first.output, given], tools=flat, instructions="Be brief."
)
out["response_after"] = again.status
print(json.dumps(out))
