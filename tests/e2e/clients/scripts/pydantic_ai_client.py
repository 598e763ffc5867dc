"""Pydantic AI: text, output by a tool and by a schema, over chats and over the Responses API."""

import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

question = "Which animal does Quentin Bruvik keep?"


class Keeps(BaseModel):
    """What somebody keeps."""

    animal: Literal["goat", "cow"]


provider = OpenAIProvider(base_url=sys.argv[1], api_key="none")
chat = OpenAIChatModel("demo_model", provider=provider)
new = OpenAIResponsesModel("demo_model", provider=provider)
out = {"chat": Agent(chat).run_sync(question).output}
out["by_tool"] = Agent(chat, output_type=Keeps).run_sync(question).output.animal
out["by_schema"] = Agent(chat, output_type=NativeOutput(Keeps)).run_sync(question).output.animal
out["responses"] = Agent(new).run_sync(question).output
out["responses_by_tool"] = Agent(new, output_type=Keeps).run_sync(question).output.animal
print(json.dumps(out))
