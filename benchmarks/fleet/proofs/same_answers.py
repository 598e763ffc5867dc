"""The same questions at one embedded service and at a fleet: are the answers the same?

    python -m benchmarks.fleet.proofs.same_answers [--questions 500] [--layout own_workers]
    python -m benchmarks.fleet.proofs.same_answers --model FOLDER --passages nq_dev.jsonl

The embedded service is `kvstitch serve` as it comes: one gateway, its one worker, SQLite, FAISS,
memory and SSD. The fleet has two gateways, four workers, PostgreSQL with pgvector, a Redis Cluster
and S3. Both have stored the same documents. Every question is searched and answered greedily by
one of the methods in turn: at the embedded service one at a time, at the fleet several at a time,
at both gateways. Texts, and documents in their order, must be the same.

Then every question comes again with its documents in another order. Texts must be the same again,
and no tier may have got a key that it did not hold: chunks are stored once, whatever stands around
them.

Requests say `cold: as_stored` and `prefix_cache: false`: what is computed because a tier was late,
and rows that an earlier question had repaired, would else depend on who asked before
(docs/api.md). The planner is as it comes. What differs is asked again alone, at both gateways.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.fleet.proofs import tier_counts
from benchmarks.fleet.proofs.fleet import LAYOUTS, Fleet
from benchmarks.fleet.proofs.processes import (
    START_S,
    FleetFailed,
    Gateway,
    end_on_sigterm,
    environment,
    free_port,
    until,
)
from demo.corpus_files import read_documents, read_questions
from service.settings import demo_model
from tuning.environment import describe

OUT = Path("benchmarks/results/fleet")
METHODS = ("question_scout", "a3", "pie", "vanilla", "cacheblend", "prophetkv", "samkv")
SIDE_BY_SIDE = 4  # requests at the fleet
SHOWN = 50  # differing answers in the result
PASSAGE_CHARS = 1200  # a passage of more may be cut into several chunks

Body = dict[str, Any]
Document = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What must be the same, and where the KV came from."""

    text: str
    documents: tuple[str, ...]
    tiers: tuple[str, ...]

    def is_like(self, other: Answer) -> bool:
        return (self.text, self.documents) == (other.text, other.documents)

    def shown(self) -> dict[str, Any]:
        return {"text": self.text, "documents": self.documents, "tiers": self.tiers}


def corpus(args: argparse.Namespace) -> tuple[list[Document], list[str]]:
    """Documents, and questions about them."""
    if args.passages is None:
        texts = [(d.doc_id, d.title, d.text) for d in read_documents()]
        questions = [q.question for q in read_questions()]
    else:
        rows = [json.loads(line) for line in args.passages.read_text().splitlines()]
        rows = [row for row in rows if len(row["text"]) <= PASSAGE_CHARS][: args.documents]
        texts = [(row["id"], row["title"], row["text"]) for row in rows]
        questions = [row["question"] for row in rows]
    return [{"doc_id": i, "title": t, "text": x} for i, t, x in texts], questions


def requests(questions: Sequence[str], args: argparse.Namespace) -> list[Body]:
    """Each question by one method after the other, no pair twice while there are others."""
    pairs = [(q, m) for q in questions for m in args.methods]
    random.Random(args.seed).shuffle(pairs)
    return [body(*pairs[n % len(pairs)], args) for n in range(args.questions)]


def body(question: str, method: str, args: argparse.Namespace) -> Body:
    return {
        "question": question,
        "fusion": {"method": method},
        "top_k": args.top_k,
        "max_tokens": args.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cold": "as_stored",
        "prefix_cache": False,
    }


def reordered(
    sent: Sequence[Body], answers: Sequence[Answer], documents: Sequence[Document], seed: int
) -> list[Body]:
    """The same questions with the documents that were found, in another order."""
    chance = random.Random(seed)
    by_id = {document["doc_id"]: document for document in documents}
    out = []
    for request, answer in zip(sent, answers, strict=True):
        order = list(dict.fromkeys(answer.documents))
        first = list(order)
        while len(order) > 1 and order == first:
            chance.shuffle(order)
        texts = {k: v for k, v in request.items() if k != "top_k"}
        out.append({**texts, "inline_documents": [by_id[doc_id] for doc_id in order]})
    return out


def ask(http: httpx.Client, request: Body) -> Answer:
    """
    Raises:
        FleetFailed: There is no answer.
    """
    reply = http.post("/v1/rag/generate", json=request)
    if reply.status_code != 200:
        raise FleetFailed(f"{request['question']}: {reply.status_code} {reply.text[:500]}")
    answer = reply.json()
    found = answer["cache"]["documents"]
    return Answer(
        answer["text"],
        tuple(citation["doc_id"] for citation in answer["citations"]),
        tuple(f"{d['tier']} {d['computed']}".strip() for d in found),
    )


def ingest(http: httpx.Client, documents: Sequence[Document]) -> None:
    """Hand in the documents and wait until they are stored.

    Raises:
        FleetFailed: They are not.
    """
    reply = http.post("/admin/precompute", json={"documents": list(documents)})
    if reply.status_code != 202:
        raise FleetFailed(f"/admin/precompute: {reply.status_code} {reply.text[:500]}")
    path = f"/admin/jobs/{reply.json()['job_id']}"
    job: dict[str, Any] = {}

    def ended() -> bool:
        reply = http.get(path)
        if reply.status_code != 200:
            raise FleetFailed(f"{path}: {reply.status_code} {reply.text[:500]}")
        job.update(reply.json())
        return job["state"] not in ("queued", "running")

    until(ended, "the job goes on")
    if job["state"] != "succeeded":
        raise FleetFailed(f"the job did not succeed: {job}")


def at_embedded(service: Gateway, sent: Sequence[Body]) -> list[Answer]:
    return [ask(service.http, request) for request in sent]


def at_fleet(fleet: Fleet, sent: Sequence[Body]) -> list[Answer]:
    def one(number: int) -> Answer:
        return ask(fleet.gateways[number % len(fleet.gateways)].http, sent[number])

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        return list(threads.map(one, range(len(sent))))


def compared(
    sent: Sequence[Body], one: Sequence[Answer], many: Sequence[Answer], fleet: Fleet
) -> dict[str, Any]:
    """How many answers are the same, by method; those that are not, asked again alone."""
    same: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    differing: list[dict[str, Any]] = []
    for request, expected, got in zip(sent, one, many, strict=True):
        method = request["fusion"]["method"]
        asked[method] += 1
        same[method] += expected.is_like(got)
        if not expected.is_like(got) and len(differing) < SHOWN:
            alone = [ask(gateway.http, request) for gateway in fleet.gateways]
            differing.append(
                {
                    "question": request["question"],
                    "method": method,
                    "embedded": expected.shown(),
                    "fleet": got.shown(),
                    "fleet_alone": [answer.shown() for answer in alone],
                }
            )
    return {
        "asked": sum(asked.values()),
        "same": sum(same.values()),
        "by_method": {m: {"asked": n, "same": same[m]} for m, n in sorted(asked.items())},
        "documents_from": dict(Counter(tier for answer in many for tier in answer.tiers)),
        "differing": differing,
    }


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both services, both passes."""
    documents, questions = corpus(args)
    sent = requests(questions, args)
    settings: dict[str, object] = {"dtype": args.dtype}
    own = {**settings, "model": args.model, "data_dir": folder / "embedded"}
    embedded = Gateway("embedded", free_port(), environment(own), folder)
    embedded.start()
    try:
        until(lambda: embedded.is_ready(1), "the embedded service is not ready", START_S)
        ingest(embedded.http, documents)
        one = at_embedded(embedded, sent)
        again = reordered(sent, one, documents, args.seed)
        one_again = at_embedded(embedded, again)
    finally:
        embedded.kill()
    say(f"{2 * len(sent)} answers of the embedded service")
    with Fleet(folder, args.model, args.layout, settings) as fleet:
        model = fleet.gateways[0].http.get("/status").json()["model"]
        ingest(fleet.gateways[0].http, documents)
        tier_counts.count(fleet)
        began = time.monotonic()
        many = at_fleet(fleet, sent)
        first = compared(sent, one, many, fleet)
        say(f"as searched: {first['same']} of {first['asked']} are the same")
        before = tier_counts.count(fleet)
        many_again = at_fleet(fleet, again)
        after = tier_counts.count(fleet)
        second = compared(again, one_again, many_again, fleet)
        say(f"in another order: {second['same']} of {second['asked']} are the same")
        grown = after.since(before)
        say(f"keys in another order: {grown}")
        return {
            "model": {name: model[name] for name in ("name", "fingerprint", "dtype")},
            "seconds_at_fleet": round(time.monotonic() - began, 1),
            "servers": fleet.versions(),
            "documents": len(documents),
            "as_searched": first,
            "in_another_order": second,
            "held_before_another_order": before.__dict__,
            "grown_in_another_order": grown,
            "decode_steps_by_worker": list(
                tier_counts.sums_by_worker(fleet, "kvstitch_decode_steps_total").values()
            ),
        }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Writes the result; 1 if an answer differs or a key was put."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.proofs.same_answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--questions", type=int, default=500)
    add("--layout", choices=LAYOUTS, default="shared_workers")
    add("--model", type=Path, default=demo_model())
    add("--dtype", default="auto")
    add("--methods", nargs="+", default=list(METHODS))
    add("--passages", type=Path, help="JSON lines with id, question, title, text; none: the demo's")
    add("--documents", type=int, default=60, help="of --passages")
    add("--top-k", type=int, default=3)
    add("--max-tokens", type=int, default=16)
    add("--seed", type=int, default=0)
    add("--out", type=Path)
    args = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="kvf-", ignore_cleanup_errors=True) as folder:
        result = run(args, Path(folder))
    named = ("questions", "layout", "methods", "top_k", "max_tokens", "seed")
    result = {"environment": describe(), **{n: getattr(args, n) for n in named}, **result}
    passes = (result["as_searched"], result["in_another_order"])
    grown = result["grown_in_another_order"]
    good = all(p["same"] == p["asked"] for p in passes) and not any(grown.values())
    out = args.out or OUT / f"same_answers_{args.layout}_{result['model']['name']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
