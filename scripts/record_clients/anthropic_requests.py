"""Requests of Anthropic's own package; as many_requests.py, and a test holds the answers to its
types: it prints (what, the answer's last state) for each, as JSON.

`python anthropic_requests.py URL [form|call]`; the client's base address is URL/WHAT, with a second
argument URL: a service that answers all with JSON of a form, or with a call of a tool.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

import anthropic
from anthropic import beta_tool
from pydantic import BaseModel

URL = sys.argv[1]
ANSWERS = "".join(sys.argv[2:])
MODEL = "demo_model"
QUESTION: Any = {"role": "user", "content": "Which animal does Quentin Bruvik keep?"}
COMMON: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "messages": [QUESTION]}
TOOL: Any = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    },
}  # fmt: skip
CALL: Any = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
RESULT: Any = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4 degrees"}
CACHED: Any = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}


class Keeps(BaseModel):
    """What somebody keeps."""

    animal: Literal["goat", "cow"]


@beta_tool
def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: Where.
    """
    return f"4 degrees in {city}"


def create(**more: Any) -> Callable[[anthropic.Anthropic], Any]:
    return lambda client: client.messages.create(**{**COMMON, **more})


def stream(**more: Any) -> Callable[[anthropic.Anthropic], Any]:
    def run(client: anthropic.Anthropic) -> Any:
        with client.messages.stream(**{**COMMON, **more}) as events:
            text = "".join(events.text_stream)
            message = events.get_final_message()
        assert text == "".join(b.text for b in message.content if b.type == "text")
        return message

    return run


def raw_stream(**more: Any) -> Callable[[anthropic.Anthropic], Any]:
    def run(client: anthropic.Anthropic) -> Any:
        events = list(client.messages.create(**{**COMMON, **more}, stream=True))
        assert events[0].type == "message_start" and events[-1].type == "message_stop"
        return None

    return run


def told(*blocks: Any) -> Any:
    said = [QUESTION, {"role": "assistant", "content": [{"type": "text", "text": "Wait."}, CALL]}]
    return [*said, {"role": "user", "content": list(blocks)}]


WHATS: dict[str, Callable[[anthropic.Anthropic], Any]] = {
    "plain": create(),
    "system": create(system="Be brief."),
    "system_blocks": create(system=[CACHED]),
    "sampling": create(
        stop_sequences=["\n\n"], extra_body={"temperature": 0.7, "top_p": 0.9, "top_k": 40}
    ),
    "metadata": create(metadata={"user_id": "me"}, service_tier="auto"),
    "thinking": create(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2048),
    "effort": create(output_config={"effort": "low"}),
    "prefill": create(messages=[QUESTION, {"role": "assistant", "content": "It keeps a"}]),
    "tools": create(tools=[TOOL]),
    "tool_any": create(tools=[TOOL], tool_choice={"type": "any"}),
    "tool_named": create(tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}),
    "tool_none": create(tools=[TOOL], tool_choice={"type": "none"}),
    "hosted_tool": create(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "result": create(messages=told(RESULT), tools=[TOOL]),
    "failed_result": create(messages=told({**RESULT, "is_error": True}), tools=[TOOL]),
    "result_blocks": create(
        messages=told({**RESULT, "content": [{"type": "text", "text": "4 degrees"}]}, CACHED),
        tools=[TOOL],
    ),
    "stream": stream(),
    "raw_stream": raw_stream(),
    "stream_tool": stream(tools=[TOOL], tool_choice={"type": "any"}),
    "raw_stream_tool": raw_stream(tools=[TOOL], tool_choice={"type": "any"}),
    "parse": lambda client: client.messages.parse(**COMMON, output_format=Keeps),
    "count": lambda client: client.messages.count_tokens(model=MODEL, messages=[QUESTION]),
    "runner": lambda client: client.beta.messages.tool_runner(
        **COMMON, tools=[get_weather], max_iterations=2
    ).until_done(),
    "extra": create(extra_body={"kvstitch": {"top_k": 1, "include_text": True}}),
    "picture": create(messages=[{"role": "user", "content": [{"type": "image", "source": {
        "type": "url", "url": "http://localhost/a.png"}}]}]),
    "model": create(model="claude-opus-5"),
}  # fmt: skip


def main() -> None:
    for what, run in WHATS.items():
        if what == ("parse" if ANSWERS == "call" else "runner" if ANSWERS == "form" else ""):
            continue
        client = anthropic.Anthropic(
            base_url=f"{URL}/{what}" if not ANSWERS else URL, api_key="none", max_retries=0
        )
        try:
            answer = run(client)
        except anthropic.APIStatusError as error:
            print(json.dumps([what, error.status_code, error.body]))
            continue
        if answer is not None:
            type(answer).model_validate(answer.model_dump())  # strict, unlike what the client does
        shown = None if answer is None else answer.model_dump(mode="json", exclude={"kvstitch"})
        print(json.dumps([what, 200, shown]))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
