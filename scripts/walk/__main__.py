"""Follows one question and one document through a running service: `python -m scripts.walk`.

The rule, the same for every version of the code, so that its figures can be compared:

- **stop**: a function of the product (not a lambda or comprehension) that is called with an
  argument, `self` apart, that carries the request: the text, its token ids, or a name made from
  them (request, job, chunk key), in the argument itself or up to two fields or items below it.
  Each function counts once, in the order of its first such call, in whatever process or thread.
- **return**: a stop in a folder that an earlier stop was in, after a stop in another folder.
- **form**: a class of the product whose instances carry the document.

The question is walked from the request to the first token that the client reads, the document from
the request to the end of its job. Another of each goes before, so that caches and lazy imports are
there. Another checkout is walked with `--root`, whose Python environment this one is. Exits with 1
if a number of `[tool.budget.walk]` is exceeded, which `make check` takes for a failure.
"""

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WORDS = {"question": "quendelvarnish", "document": "zirbenflockentee"}
"""Words that stand in no other text, by walk."""


@dataclass(frozen=True)
class Walk:
    """What one walk found: stops in order, as file and function, and the names of forms."""

    stops: list[tuple[str, str]]
    forms: list[str]

    @property
    def returns(self) -> int:
        rooms = [str(Path(file).parent) for file, _ in self.stops]
        return sum(
            room != before and room in rooms[:i]
            for i, (before, room) in enumerate(itertools.pairwise(rooms))
        )


def walk(root: Path) -> dict[str, Walk]:
    """Serve the demo's model from `root`, and walk a question and a document through it."""
    with tempfile.TemporaryDirectory(prefix="kvstitch-walk-") as scratch:
        with served(root, Path(scratch)) as http:
            ingest(http, "before", "Warm-up text about a harbour and its seven boats.")
            ask(http, "How many boats has the harbour?")
            began = time.monotonic()
            word = WORDS["document"]
            ingest(http, "walked", f"The {word} {word} grows at Lindmoor, where {word} is dried.")
            between = time.monotonic()
            first_token = ask(http, f"How many boats has the {WORDS['question']} harbour?")
        windows = {"document": (began, between), "question": (between, first_token)}
        return read_walks(Path(scratch), windows)


@contextmanager
def served(root: Path, scratch: Path) -> Iterator[httpx.Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    python_path = [str(HERE / "recorder"), str(root), *map(str, root.glob("plugins/*/"))]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(python_path),
        "OMP_WAIT_POLICY": "PASSIVE",
        "WALK_ROOT": str(root),
        "WALK_DIR": str(scratch),
        "WALK_MARKERS": json.dumps(markers(root)),
    }
    command = [sys.executable, "-m", "kvstitch.service.cli", "serve", "--port", str(port)]
    command += ["--data-dir", str(scratch / "data")]
    with (scratch / "log").open("wb") as log:
        service = subprocess.Popen(
            command, cwd=root, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as http:
            while not is_ready(http):
                if service.poll() is not None:
                    raise SystemExit((scratch / "log").read_text())
                time.sleep(0.5)
            yield http
    finally:
        service.terminate()
        service.wait(60)


def markers(root: Path) -> dict[str, dict[str, Any]]:
    tokenizer = Tokenizer.from_file(str(root / "service/demo_model/tokenizer.json"))
    middle = {walk: tokenizer.encode(" " + word).ids[1:-1] for walk, word in WORDS.items()}
    return {walk: {"word": word, "ids": middle[walk]} for walk, word in WORDS.items()}


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/health/ready").is_success
    except httpx.TransportError:
        return False


def ingest(http: httpx.Client, doc_id: str, text: str) -> None:
    body = {"documents": [{"doc_id": doc_id, "text": text}]}
    job = http.post("/admin/precompute", json=body).raise_for_status().json()
    while (state := http.get(f"/admin/jobs/{job['job_id']}").json()["state"]) != "succeeded":
        if state in ("failed", "cancelled"):
            raise SystemExit(f"the document's job {state}")
        time.sleep(0.05)


def ask(http: httpx.Client, question: str) -> float:
    """Return when the first token came, by time.monotonic."""
    body = {"question": question, "stream": True, "max_tokens": 4, "unanswerable": "answer"}
    first = 0.0
    with http.stream("POST", "/v1/rag/generate", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not first and line.startswith("event: token"):
                first = time.monotonic()
    return first


def read_walks(folder: Path, windows: dict[str, tuple[float, float]]) -> dict[str, Walk]:
    lines = [json.loads(x) for f in folder.glob("*.jsonl") for x in f.read_text().splitlines()]
    if errors := {line["error"] for line in lines if "error" in line}:
        raise SystemExit(f"the recorder failed: {errors}")
    found = {}
    for name, (begin, end) in windows.items():
        mine = [x for x in lines if x["walk"] == name and begin <= x["t"] <= end]
        mine.sort(key=lambda x: x["t"])
        stops = dict.fromkeys((x["file"], x["function"]) for x in mine)
        forms = dict.fromkeys(form for x in mine for form in x["forms"])
        found[name] = Walk(list(stops), list(forms))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="follow a question and a document")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    parser.add_argument("--list", action="store_true", help="print every stop")
    arguments = parser.parse_args()
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["budget"]["walk"]
    over = False
    for name, found in walk(arguments.root.resolve()).items():
        if arguments.list:
            for file, function in found.stops:
                print(f"  {file} {function}")
        counts = {"stops": len(found.stops), "returns": found.returns}
        if name == "document":
            counts["forms"] = len(found.forms)
            print(f"forms: {', '.join(found.forms)}")
        for what, count in counts.items():
            limit = limits[f"{name} {what}"]
            over |= count > limit
            mark = "  OVER" if count > limit else ""
            print(f"{name + ' ' + what:<32} {count:>8,} {limit:>8,}{mark}")
    return over


if __name__ == "__main__":
    sys.exit(main())
