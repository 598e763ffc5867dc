"""Instructor: output by a tool, by JSON mode and by a schema."""

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Keeps(BaseModel):
    """What somebody keeps."""

    animal: Literal["goat", "cow"]


ask = [{"role": "user", "content": "Which animal does Quentin Bruvik keep?"}]
out = {}
for mode in ("TOOLS", "JSON_SCHEMA"):
    client = instructor.from_openai(OpenAI(base_url=sys.argv[1]), mode=instructor.Mode[mode])
    out[mode] = client.chat.completions.create(
        model="demo_model", messages=ask, response_model=Keeps, max_retries=0
    ).animal
print(json.dumps(out))
