"""A fleet under load, one process of which after the other is killed with SIGKILL and comes back.

    python -m benchmarks.fleet.proofs.kill_rounds [--rounds 20] [--layout shared_workers] [--seed 1]

Three clients have answers streamed, one hands documents in, one deletes some. In every round one
part is killed at a random moment: a worker, a gateway, a Redis master (its replica takes its place,
then it comes back), PostgreSQL (it recovers from its log) and the S3 server (it comes back empty).
The next round begins when all is whole again.

What must hold, at every moment: a request ends, in an answer, an error event or a refusal that
says to come again; a connection breaks only if its gateway was killed; an answer is the one that
the undisturbed fleet gave. And in the end: every acknowledged document is there once, with its
vector, at both gateways; those deleted are gone and answer nothing, their receipts are complete,
and once all documents are deleted, no tier holds KV of any.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fleet.proofs import invariants, same_answers
from benchmarks.fleet.proofs.clients import Clients, asks
from benchmarks.fleet.proofs.fleet import KINDS, LAYOUTS, Fleet
from benchmarks.fleet.proofs.ledger import Ledger
from benchmarks.fleet.proofs.processes import START_S, Gateway, end_on_sigterm, until
from demo.corpus_files import read_documents, read_questions
from service.settings import demo_model
from tuning.environment import describe

OUT = Path("benchmarks/results/fleet")
ASKS, ASKED_DOCUMENTS = 9, 20
CALM_S = (1.0, 3.0)  # before a kill
AWAY_S = (0.5, 4.0)  # before a gateway, PostgreSQL or S3 is started again
GIVEN_UP_S = 300.0  # until there is a good answer again


def one_round(fleet: Fleet, ledger: Ledger, kind: str, chance: random.Random) -> dict[str, Any]:
    """Kill a part of this kind, bring it back, and wait until all is whole."""
    time.sleep(chance.uniform(*CALM_S))
    part = fleet.part(kind, chance)
    killed = time.monotonic()
    part.kill()
    time.sleep(chance.uniform(*AWAY_S))
    part.restart()
    restarted_s = time.monotonic() - killed
    until(lambda: part.is_back() and fleet.is_whole(), f"not whole after {part.name}", START_S)
    for gateway in fleet.gateways:
        gateway.note_ready()
    whole_s = time.monotonic() - killed
    per_gateway = [_waited(ledger, "answer", killed, gateway.name) for gateway in fleet.gateways]
    return {
        "kind": kind,
        "part": part.name,
        "first_answer_s": round(min(per_gateway), 2),
        "every_gateway_answers_s": round(max(per_gateway), 2),
        "first_acknowledged_ingest_s": round(_waited(ledger, "ingest", killed), 2),
        "restarted_s": round(restarted_s, 2),
        "whole_s": round(whole_s, 2),
        "ends": ledger.outcomes(killed, time.monotonic()),
    }


def _waited(ledger: Ledger, what: str, since: float, gateway: str | None = None) -> float:
    """Seconds until the first good one, which may be yet to come; GIVEN_UP_S, and a violation."""
    give_up_at = since + GIVEN_UP_S
    while (took := ledger.first_good_s(what, since, gateway)) is None:
        if time.monotonic() > give_up_at:
            ledger.violation(f"no good {what} in {GIVEN_UP_S:.0f} s at {gateway or 'any gateway'}")
            return GIVEN_UP_S
        time.sleep(0.1)
    return took


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start the fleet, kill, and check."""
    chance = random.Random(args.seed)
    corpus = [{"doc_id": d.doc_id, "title": d.title, "text": d.text} for d in read_documents()]
    kept = chance.sample(corpus, ASKED_DOCUMENTS)
    questions = [question.question for question in read_questions()]
    ledger = Ledger()
    with Fleet(folder, args.model, args.layout, {"drain_timeout_s": 2}) as fleet:
        first: Gateway = fleet.gateways[0]
        same_answers.ingest(first.http, kept)
        made = asks(first.http, kept, questions, ASKS, args.max_tokens, chance)
        clients = Clients(fleet, ledger, made, args.seed)
        began = time.monotonic()
        clients.start()
        rounds: list[dict[str, Any]] = []
        try:
            for number in range(args.rounds):
                rounds.append(
                    one_round(fleet, ledger, args.kinds[number % len(args.kinds)], chance)
                )
                same_answers.say(f"{number + 1}: {rounds[-1]} {ledger.violations}")
        finally:
            clients.stop()
        lasted = time.monotonic() - began
        servers = fleet.versions()
        checked: dict[str, Any] = {}
        left: dict[str, int] = {}
        try:
            kept_ids = {document["doc_id"] for document in kept}
            checked = invariants.check(fleet, ledger, kept_ids, made)
            left = invariants.nothing_is_left(fleet, ledger)
        except Exception as error:  # what was measured until then is worth keeping
            ledger.violation(f"the check of the end broke off: {type(error).__name__}: {error}")
        same_answers.say(f"{checked} {left} {ledger.violations}")
        if ledger.violations and args.keep_logs:
            args.keep_logs.mkdir(parents=True, exist_ok=True)
            for log in folder.glob("*.log"):
                (args.keep_logs / log.name).write_bytes(log.read_bytes())
    return {
        "servers": servers,
        "seconds": round(lasted, 1),
        "by_kind": summary(rounds),
        "ends": ledger.outcomes(),
        "documents": checked,
        "kv_left_when_all_is_deleted": left,
        "violations": ledger.violations,
        "rounds": rounds,
    }


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """By kind: median and longest of the seconds, and how requests ended meanwhile."""
    out: dict[str, Any] = {}
    for kind in dict.fromkeys(one["kind"] for one in rounds):
        own = [one for one in rounds if one["kind"] == kind]
        out[kind] = {"kills": len(own)}
        for name in (n for n in own[0] if n.endswith("_s")):
            values = [one[name] for one in own]
            out[kind][name] = {
                "median": round(statistics.median(values), 2), "longest": max(values)
            }  # fmt: skip
        ends: dict[str, int] = {}
        for one in own:
            for end, count in one["ends"].items():
                ends[end] = ends.get(end, 0) + count
        out[kind]["ends"] = dict(sorted(ends.items()))
    return out


def main() -> int:
    """Writes the result; 1 if anything did not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.proofs.kill_rounds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=20)
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    add("--layout", choices=LAYOUTS, default="shared_workers")
    add("--max-tokens", type=int, default=64, help="of an answer; kills must meet streams")
    add("--model", type=Path, default=demo_model())
    add("--seed", type=int, default=1)
    add("--keep-logs", type=Path, help="folder for the processes' logs if something did not hold")
    add("--out", type=Path)
    args = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="kvf-", ignore_cleanup_errors=True) as folder:
        result = run(args, Path(folder))
    shape = {"layout": args.layout, "max_tokens": args.max_tokens, "seed": args.seed}
    result = {"environment": describe(), **shape, **result}
    out = args.out or OUT / f"kill_rounds_{args.layout}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
