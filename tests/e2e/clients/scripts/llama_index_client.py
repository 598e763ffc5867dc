"""LlamaIndex: OpenAILike with tools and structured output."""

import json
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

question = "Which animal does Quentin Bruvik keep?"


class Keeps(BaseModel):
    """What somebody keeps."""

    animal: Literal["goat", "cow"]


def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """Tells the weather."""
    return "4 degrees"


llm = OpenAILike(
    api_base=sys.argv[1],
    api_key="none",
    model="demo_model",
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    max_tokens=200,
)
message = ChatMessage(role="user", content=question)
out = {"chat": llm.chat([message]).message.content}
out["stream"] = "".join(piece.delta or "" for piece in llm.stream_chat([message]))
tools = [FunctionTool.from_defaults(get_weather)]
reply = llm.chat_with_tools(tools, user_msg=question, tool_required=True)
calls = llm.get_tool_calls_from_response(reply)
out["call"] = [calls[0].tool_name, calls[0].tool_kwargs]
out["structured"] = llm.as_structured_llm(Keeps).complete(question).raw.animal
print(json.dumps(out))
