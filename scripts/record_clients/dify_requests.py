"""Requests of Dify's provider for OpenAI-compatible services; as many_requests.py."""

import contextlib
import itertools
import sys

from dify_plugin.entities.model.message import (
    AssistantPromptMessage,
    PromptMessageTool,
    SystemPromptMessage,
    ToolPromptMessage,
    UserPromptMessage,
)
from dify_plugin.interfaces.model.openai_compatible.llm import OAICompatLargeLanguageModel
from dify_plugin.interfaces.model.openai_compatible.text_embedding import OAICompatEmbeddingModel

QUESTION = UserPromptMessage(content="Which animal does Quentin Bruvik keep?")
TOOL = PromptMessageTool(
    name="get_weather",
    description="Tells the weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CALL = AssistantPromptMessage.ToolCall(
    id="call_1",
    type="function",
    function={"name": "get_weather", "arguments": '{"city": "Oslo"}'},
)
RESULT = [
    QUESTION,
    AssistantPromptMessage(content="", tool_calls=[CALL]),
    ToolPromptMessage(content="4 degrees", tool_call_id="call_1"),
]
WHATS = {
    "plain": ([QUESTION], {}, None),
    "system": ([SystemPromptMessage(content="Be brief."), QUESTION], {"max_tokens": 64}, None),
    "sampling": ([QUESTION], {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.1,
                              "frequency_penalty": 0.1, "seed": 0}, None),
    "thinking": ([QUESTION], {"enable_thinking": False, "reasoning_effort": "low"}, None),
    "json": ([QUESTION], {"response_format": "json_object"}, None),
    "schema": ([QUESTION], {"response_format": "json_schema",
                            "json_schema": '{"name": "a", "schema": {"type": "object"}}'}, None),
    "tools": ([QUESTION], {}, [TOOL]),
    "result": (RESULT, {}, [TOOL]),
}  # fmt: skip


def main() -> None:
    llm = OAICompatLargeLanguageModel([])
    for (what, (messages, parameters, tools)), stream in itertools.product(
        WHATS.items(), (True, False)
    ):
        credentials = {"endpoint_url": f"{sys.argv[1]}/Dify/{what}/v1", "api_key": "none",
                       "mode": "chat", "function_calling_type": "tool_call",
                       "stream_function_calling": "supported"}  # fmt: skip
        with contextlib.suppress(Exception):
            found = llm._invoke("demo_model", credentials, messages, dict(parameters), tools,
                                ["\nObservation"], stream, "user-1")  # fmt: skip
            for _ in found if stream else ():
                pass
    for mode in ("chat", "completion"):
        with contextlib.suppress(Exception):
            llm.validate_credentials("demo_model", {**credentials, "mode": mode})
    with contextlib.suppress(Exception):
        embedder = OAICompatEmbeddingModel([])
        embedder._invoke("all-MiniLM-L6-v2", {**credentials, "context_size": "512"}, ["a goat"])


main()
