"""What the default saves on short prompts of the demo's model over HTTP, with planner and gateway.

    python -m benchmarks.costs.short_prompts_http [--rounds 60] [--beside CHECKOUT]

Starts `kvstitch serve` on the demo's corpus, one thread, all defaults, and asks for one token with
full prefill and with no method named, in turns that rotate, of as many passages as come closest to
each number of tokens. Ratios are of the same round: of the clock, from request to answer, and of
the processor's time of gateway and worker together. The gateway's share is what neither waits for
the worker nor is computed by it; embedding belongs to it. With --beside the service of another
checkout of this project answers, too, in the same rounds. Writes short_prompts_http.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from demo.client import Client
from demo.corpus_files import read_documents, read_questions
from demo.process import free_port, service
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/speed/short_prompts_http.json")
WARM_UP = 8  # rounds; after a few the planner knows both kinds of prefill
MOST_PASSAGES = 16
OF_WORKER = ("queue", "load", "prefill", "evict", "first_token", "decode")
HERE = "here"
WAYS: dict[str, dict[str, Any]] = {
    "full prefill": {"fusion": {"method": "vanilla"}},
    "question_scout": {"fusion": {"method": "question_scout"}},
    "default": {},
}


class Served:
    """One running service, asked over one connection."""

    def __init__(self, url: str, gateway: int) -> None:
        self.http = httpx.Client(base_url=url, timeout=120.0)
        self._pids = [gateway, self.http.get("/status").json()["worker"]["pid"]]

    def ask(self, question: str, passages: int, way: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for one token; return seconds and the answer."""
        body = {"question": question, "top_k": passages, "max_tokens": 1, "prefix_cache": False}
        before = [_processor_s(pid) for pid in self._pids]
        started = time.perf_counter()
        reply = self.http.post("/v1/rag/generate", json={**body, **way})
        seconds = time.perf_counter() - started
        spent = [_processor_s(pid) - s for pid, s in zip(self._pids, before, strict=True)]
        answer = reply.raise_for_status().json()
        worker = sum(answer["stages"].get(name, 0.0) for name in OF_WORKER)
        return {
            "answer": answer,
            "clock": seconds,
            "processor": sum(spent),
            "gateway_clock": seconds - worker,
            "gateway_processor": spent[0],
        }

    def passages_of(self, questions: Sequence[str], tokens: int) -> int:
        """Return with how many passages prompts come closest to so many tokens."""

        def mean(passages: int) -> float:
            answers = [self.ask(each, passages, {})["answer"] for each in questions]
            return statistics.mean(int(each["usage"]["prompt_tokens"]) for each in answers)

        few, many = mean(2), mean(MOST_PASSAGES)
        return 2 + round((tokens - few) / (many - few) * (MOST_PASSAGES - 2))


def _processor_s(pid: int) -> float:
    """Seconds that all threads of a process have run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def started(checkout: Path, folder: Path) -> Iterator[Served]:
    """The service of a checkout, with the demo's corpus ingested."""
    data_dir, port = folder / "data", free_port()
    data_dir.mkdir(parents=True)
    kept, here = dict(os.environ), Path.cwd()
    os.environ |= {"PYTHONPATH": str(checkout), "KVSTITCH_THREADS": "1"}
    os.chdir(checkout)  # `python -m` looks there first
    try:
        running = service(data_dir, port, folder / "service.log")
        process = running.__enter__()
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(kept)
    with ExitStack() as stack:
        stack.push(running.__exit__)
        url = f"http://127.0.0.1:{port}"
        with Client(url) as client:
            for _ in client.precompute(read_documents()):
                pass
        served = Served(url, process.pid)
        stack.callback(served.http.close)
        yield served


def measured(services: Mapping[str, Served], tokens: int, rounds: int) -> dict[str, Any]:
    """Medians and quartiles of every way at every service, and ratios to full prefill here."""
    questions = [each.question for each in read_questions()]
    first = next(iter(services.values()))
    passages = first.passages_of(questions[:4], tokens)
    ways = [(at, name) for at in services for name in WAYS if at == HERE or not WAYS[name]]
    taken: dict[tuple[str, str], list[dict[str, Any]]] = {way: [] for way in ways}
    for turn in range(WARM_UP + rounds):
        shift = turn % len(ways)
        for at, name in ways[shift:] + ways[:shift]:
            question = questions[turn % len(questions)]
            taken[at, name].append(services[at].ask(question, passages, WAYS[name]))
    made: dict[str, Any] = {"passages": passages}
    base = taken[ways[0]][WARM_UP:]
    made["tokens"] = statistics.median(row["answer"]["usage"]["prompt_tokens"] for row in base)
    for (at, name), rows in taken.items():
        rows = rows[WARM_UP:]
        found: dict[str, Any] = {}
        for what in ("clock", "processor", "gateway_clock", "gateway_processor"):
            found[f"{what}_ms"] = round(1e3 * statistics.median(row[what] for row in rows), 2)
            ratios = [row[what] / of[what] for row, of in zip(rows, base, strict=True)]
            found[what] = [round(each, 3) for each in statistics.quantiles(ratios, n=4)]
        segments = [row["answer"]["cache"]["system"] for row in rows]
        found["computed_whole"] = sum(each["plan"] == "recompute" for each in segments)
        made[f"{at}, {name}"] = found
    return made


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[240, 688])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--beside", type=Path, help="another checkout, whose service answers, too")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    checkouts = {HERE: Path.cwd()} | ({"beside": args.beside} if args.beside else {})
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        services = {
            name: stack.enter_context(started(checkout, Path(folder) / name))
            for name, checkout in checkouts.items()
        }
        found = {str(tokens): measured(services, tokens, args.rounds) for tokens in args.tokens}
    for tokens, ways in found.items():
        print(f"{tokens} tokens asked")
        for name, figures in ways.items():
            print(f"    {name:<24}", figures)
    made_with = describe() | {"rounds": args.rounds}
    args.out.write_text(json.dumps({"made_with": made_with, "prompts": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
