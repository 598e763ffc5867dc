"""Writes down everything a user or the other process can see, to compare two states of the code.

    python scripts/public_surface.py before.json        # in one checkout
    python scripts/public_surface.py after.json         # in the other
    diff before.json after.json                         # equal: nothing visible changed

What it holds: /openapi.json, /v1/methods, the bytes of every message between the processes,
metrics, settings, the help of every command, and what the demo answers under every fusion method
(text,
citations, rows, bytes, operations; no times). Needs the code's own environment and about a minute.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path.cwd()))
# The planner weighs measured times: without it the same request reads the same bytes.
os.environ["KVSTITCH_PLANNER"] = "false"

import httpx
import msgspec

from demo.client import Client, request_body
from demo.corpus_files import read_documents, read_questions
from demo.process import free_port, service
from kvstitch.service.messages import replies, requests, wire
from kvstitch.service.settings import all_settings
from kvstitch.service.shared import metrics

EVICTIONS = ("snapkv", "gemfilter", "kvec")
TIMES = re.compile(r"(_s|_ms|_at|stages|timing|created|seconds|uptime)$")
"""Fields that differ from run to run."""


def example(hint: msgspec.inspect.Type, name: str) -> Any:
    """A value of this type that depends on nothing but the names around it."""
    inspect = msgspec.inspect
    match hint:
        case inspect.IntType():
            return len(name)
        case inspect.FloatType():
            return len(name) / 4
        case inspect.BytesType():
            return name.encode()
        case inspect.StrType():
            return name
        case inspect.BoolType():
            return True
        case inspect.NoneType():
            return None
        case inspect.LiteralType(values=values):
            return values[-1]
        case inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case inspect.ListType(item_type=item):
            return [example(item, name), example(item, name + "2")]
        case inspect.TupleType(item_types=items):
            return tuple(example(item, f"{name}{i}") for i, item in enumerate(items))
        case inspect.DictType(value_type=value):
            return {name: example(value, name)}
        case inspect.UnionType(types=types):
            wanted = [t for t in types if not isinstance(t, inspect.NoneType)]
            return example(wanted[0], name)
        case inspect.AnyType():
            return name
        case _ if hasattr(hint, "fields"):
            values = {f.name: example(f.type, f.name) for f in hint.fields}
            return hint.cls(**values)
    raise TypeError(f"{name}: no example for {hint}")


def wire_bytes() -> dict[str, str]:
    """One message of every kind, as it goes over the socket."""
    kinds = {*get_args(requests.ToWorker), *get_args(replies.FromWorker)}
    return {
        kind.__name__: wire.encode(example(msgspec.inspect.type_info(kind), kind.__name__)).hex()
        for kind in sorted(kinds, key=lambda kind: kind.__name__)
    }


def declared_metrics() -> list[str]:
    found = (getattr(metrics, name) for name in sorted(vars(metrics)))
    return sorted(
        {
            repr(m)
            for value in found
            for m in (value if isinstance(value, list | tuple) else [value])
            if isinstance(m, metrics.Declared)
        }
    )


def command_help(*words: str) -> dict[str, str]:
    """The help of a command and of all below it."""
    command = [sys.executable, "-m", "kvstitch.service.cli", *words, "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {" ".join(words) or "kvstitch": text}
    below = re.search(r"\n  (?:COMMAND|ACTION)\n((?:    .*\n)+)", text)
    for word in re.findall(r"^    ([a-z-]+)", below.group(1), re.MULTILINE) if below else ():
        found |= command_help(*words, word)
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not TIMES.search(k) and k != "id"}
    if isinstance(value, list):
        return [without_times(v) for v in value]
    return value


def answers(client: Client, http: httpx.Client) -> dict[str, Any]:
    """The demo's twenty questions under every method; some with eviction; some explained."""
    for done, total in client.precompute(read_documents()):
        del done, total
    methods = sorted(http.get("/v1/methods").json()["fusion"], key=str)
    names = [m["name"] if isinstance(m, dict) else str(m) for m in methods]
    questions = read_questions()[:20]
    found: dict[str, Any] = {}
    for name in names:
        for question in questions:
            body = request_body(question.question, name, 3) | {"stream": False}
            found[f"{name}: {question.question}"] = reply(http, body)
        body = request_body(questions[0].question, name, 3) | {"stream": False}
        found[f"{name}, explained"] = reply(http, body | {"explain": True})
        found[f"{name}, tokens"] = reply(http, body | {"include_tokens": True})
    for name in EVICTIONS:
        for question in questions[:5]:
            body = request_body(question.question, "question_scout", 3)
            body |= {"stream": False, "eviction": {"method": name, "budget": 160}}
            found[f"question_scout and {name}: {question.question}"] = reply(http, body)
    return found


def reply(http: httpx.Client, body: dict[str, Any]) -> Any:
    got = http.post("/v1/rag/generate", json=body)
    return [got.status_code, without_times(got.json())]


def default(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else str(value)


def main() -> None:
    surface: dict[str, Any] = {
        "wire": wire_bytes(),
        "metrics": declared_metrics(),
        "settings": all_settings().model_json_schema(),
        "commands": command_help(),
    }
    with tempfile.TemporaryDirectory(prefix="kvstitch-surface-") as scratch:
        port, log = free_port(), Path(scratch) / "service.log"
        url = f"http://127.0.0.1:{port}"
        with (
            service(Path(scratch) / "data", port, log),
            Client(url) as client,
            httpx.Client(base_url=url, timeout=120.0) as http,
        ):
            surface["openapi"] = http.get("/openapi.json").json()
            surface["methods"] = http.get("/v1/methods").json()
            surface["answers"] = answers(client, http)
    text = json.dumps(surface, indent=1, sort_keys=True, default=default, ensure_ascii=False)
    Path(sys.argv[1]).write_text(text + "\n")


if __name__ == "__main__":
    main()
