"""Holds answers against the types of the official `openai` package; prints how many objects there
were, and what is wrong: `python validate_answers.py FILE`, of lines [path, whole or stream, text].

The package itself takes answers as they come. Here they are validated, with required fields.
"""

import json
import sys
from pathlib import Path

from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter, ValidationError

TYPES = {
    ("/v1/chat/completions", "whole"): ChatCompletion,
    ("/v1/chat/completions", "stream"): ChatCompletionChunk,
    ("/v1/completions", "whole"): Completion,
    ("/v1/completions", "stream"): Completion,
    ("/v1/responses", "whole"): Response,
    ("/v1/responses", "stream"): ResponseStreamEvent,
    ("/v1/embeddings", "whole"): CreateEmbeddingResponse,
}
checked, faults = 0, {}
adapters = {kind: TypeAdapter(type) for kind, type in TYPES.items()}
for line in Path(sys.argv[1]).read_text().splitlines():
    path, kind, text = json.loads(line)
    found = [text]
    if kind == "stream":
        found = [one[6:] for one in text.split("\n") if one.startswith("data: {")]
    for one in found:
        checked += 1
        try:
            adapters[path, kind].validate_json(one)
        except ValidationError as error:
            for fault in error.errors():
                # OpenAI's own chunks have null here until the last; base64 is the package's to read
                if kind == "stream" and path == "/v1/completions" and fault["input"] is None:
                    continue
                if fault["loc"][-1] == "embedding" and isinstance(fault["input"], str):
                    continue
                faults[f"{path} {kind} {fault['loc']} {fault['msg']}"] = one[:300]
print(json.dumps([checked, sorted(faults)]))
