"""LangChain: ChatOpenAI with tools and structured output, an agent, the Responses API."""

import json
import sys
from typing import Literal

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

question = "Which animal does Quentin Bruvik keep?"


class Keeps(BaseModel):
    """What somebody keeps."""

    animal: Literal["goat", "cow"]


@tool
def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """Tells the weather."""
    return "4 degrees"


chat = ChatOpenAI(base_url=sys.argv[1], model="demo_model", timeout=60)
out = {"chat": chat.invoke(question).content}
out["stream"] = "".join(str(chunk.content) for chunk in chat.stream(question))
bound = chat.bind_tools([get_weather], tool_choice="required")
out["call"] = [bound.invoke(question).tool_calls[0][key] for key in ("name", "args")]
whole = None
for chunk in bound.stream(question):
    whole = chunk if whole is None else whole + chunk
out["streamed_call"] = [whole.tool_calls[0][key] for key in ("name", "args")]
for method in ("json_schema", "function_calling", "json_mode"):
    if method != "json_mode":
        out[method] = chat.with_structured_output(Keeps, method=method).invoke(question).animal
state = create_agent(chat, [get_weather]).invoke({"messages": [("user", question)]})
out["agent"] = type(state["messages"][-1]).__name__
new = ChatOpenAI(base_url=sys.argv[1], model="demo_model", timeout=60, use_responses_api=True)
out["responses"] = new.invoke(question).text
print(json.dumps(out))
