"""OpenAI's agents SDK over both APIs."""

import asyncio
import json
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
question = "Which animal does Quentin Bruvik keep?"


@function_tool
def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """Tells the weather."""
    return "4 degrees"


async def main() -> None:
    out = {}
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="none")
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model="demo_model", openai_client=client)
        plain = await Runner.run(Agent(name="plain", model=model), question)
        forced = Agent(
            name="forced",
            model=model,
            tools=[get_weather],
            model_settings=ModelSettings(tool_choice="required"),
            tool_use_behavior="stop_on_first_tool",
        )
        called = await Runner.run(forced, question)
        streamed = Runner.run_streamed(Agent(name="plain", model=model), question)
        async for _ in streamed.stream_events():
            pass
        out[kind.__name__] = [plain.final_output, called.final_output, streamed.final_output]
    print(json.dumps(out))


asyncio.run(main())
