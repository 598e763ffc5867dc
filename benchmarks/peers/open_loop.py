"""kvstitch beside other servers under load: Poisson arrivals at rising rates.

    python -m benchmarks.peers.open_loop --model FOLDER [--rates 0.2 0.4 …]

The requests are loadtest's: documents drawn by popularity (Zipf) and sent in a shuffled order, a
question about one of them. At each rate every server gets the same requests at the same times, one
server after the other; the order rotates, and the others are idle. TTFT counts from the time at
which a request was meant to be sent. Writes open_loop.json, .md, .png, .html and every request.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers.peer_route import PeerRoute
from benchmarks.peers.processes import Ended
from benchmarks.peers.prompts import Encoder
from benchmarks.peers.servers.peer import Conditions, Peer
from benchmarks.peers.starting import started
from benchmarks.peers.table import table
from benchmarks.peers.workloads import sources
from benchmarks.quality.tasks import natural_questions
from loadtest import machine
from loadtest.errors import LoadTestError
from loadtest.measurement.request_record import OK, RequestRecord
from loadtest.rate_sweep import Entrant, StepRunner, StepSettings, sweep, unloaded
from loadtest.reporting.knee import knees
from loadtest.reporting.result_files import write
from loadtest.reporting.run_summary import Slo
from loadtest.sending.streaming_client import StreamingClient
from loadtest.traffic.corpus_reader import CorpusQuestion
from loadtest.traffic.routes import MethodUnderTest
from loadtest.traffic.workloads import Zipf

NAME = "open_loop"
SERVERS = ("vLLM", "llama.cpp", "kvstitch")
RATES = (0.2, 0.4, 0.6, 0.9, 1.3, 1.8, 2.5, 3.5)
ALONE = 3
"""Requests of each server without load."""
Raw = dict[str, list[RequestRecord]]


def main(given: Sequence[str] | None = None) -> int:
    args = parser().parse_args(given)
    before = machine.describe()
    try:
        with tempfile.TemporaryDirectory(prefix="kvstitch-peers-") as folder:
            result, raw = run(args, Path(folder))
    except (LoadTestError, ValueError, OSError) as error:
        print(f"open_loop: {error}", file=sys.stderr)
        return 1
    write(args.out, NAME, result | {"machine": before}, raw)
    print(brief(result))
    return 0 if any(step["valid"] for step in result["steps"]) else 2


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.open_loop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = out.add_argument
    add("--model", type=Path, required=True, help="a Hugging Face model folder")
    add("--rates", type=float, nargs="+", default=list(RATES), help="requests per second")
    add("--step-s", type=float, default=40.0, help="how long a rate lasts, in seconds")
    add("--patience-s", type=float, default=8.0, help="for answers after the last request")
    add("--ttft-ms", type=float, default=1000.0, help="the SLO's limit of TTFT")
    add("--tpot-ms", type=float, help="the SLO's limit of TPOT; default: none")
    add("--attainment", type=float, default=0.9, help="share of good answers up to the knee")
    add("--max-lag-ms", type=float, default=100.0, help="of the generator, 99th percentile")
    add("--documents", type=int, default=8, help="of a prompt")
    add("--corpus", type=int, default=64, help="documents that are drawn")
    add("--alpha", type=float, default=1.0, help="of the Zipf law")
    add("--max-tokens", type=int, default=16, help="of every answer")
    add("--context", type=int, default=4096, help="longest prompt and answer")
    add("--slots", type=int, default=4, help="of llama.cpp")
    add("--step-tokens", type=int, help="of vLLM; default: its own")
    add("--threads", type=int, default=2, help="of every server")
    add("--cache-mib", type=int, default=1024, help="for KV, of every server")
    add("--seed", type=int, default=1)
    add("--only", nargs="+", default=list(SERVERS), help="servers, by the beginning of their names")
    add("--out", type=Path, default=Path("benchmarks/results/peers"))
    return out


def run(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], Raw]:
    """Starts the servers, measures, and stops them.

    Raises:
        LoadTestError: a server does not answer, or not to the prompt it was asked.
    """
    encoder = Encoder(args.model)
    conditions = Conditions(
        args.model.resolve(),
        folder,
        args.threads,
        args.context,
        args.cache_mib,
        encoder.answer_prefix,
        slots=args.slots,
        step_tokens=args.step_tokens,
        whole_answers=True,
    )
    found = sources(natural_questions.load("test"))[: args.corpus]
    work = Zipf(
        [source.document for source in found],
        [CorpusQuestion(source.question, source.document.doc_id) for source in found],
        args.documents,
        alpha=args.alpha,
        max_tokens=args.max_tokens,
    )
    with started(conditions, args.only, say) as (peers, absent):
        for peer in peers:
            peer.store(work.documents)
        result, raw = asyncio.run(measure(args, work, peers, encoder))
        result["servers"] = {peer.name: peer.about().to_json() for peer in peers}
        result["notes"] += [f"{name} was left out: {why}" for name, why in absent.items()]
        return result | {"model": args.model.name}, raw


async def measure(
    args: argparse.Namespace, work: Zipf, peers: Sequence[Peer], encoder: Encoder
) -> tuple[dict[str, Any], Raw]:
    """Runs all steps.

    Returns:
        The result in the form of the load test's, and the records of each step.

    Raises:
        ProbeFailed: a server does not answer even without load.
        ValueError: no server runs, or they counted different prompts.
    """
    if not peers:
        raise ValueError("no server runs")
    slo = Slo(args.ttft_ms / 1000, None if args.tpot_ms is None else args.tpot_ms / 1000)
    pattern = StepSettings(
        args.step_s, 0.0, args.patience_s, args.max_lag_ms / 1000, seed=args.seed
    )
    names = [peer.name for peer in peers]
    async with AsyncExitStack() as stack:
        entrants: list[Entrant] = []
        for peer in peers:
            route = PeerRoute(peer.dialect, encoder)
            client = await stack.enter_async_context(StreamingClient(peer.url, route))
            runner = StepRunner(client, route, pattern, slo, settled(peer))
            entrants.append((runner, MethodUnderTest(peer.name)))
        before = await unloaded(entrants, work, ALONE, say)
        if len({alone["prompt_tokens"] for alone in before.values()}) > 1:
            raise ValueError(f"the servers counted different prompts: {before}")
        steps, raw = await sweep(entrants, work, args.rates, say)
        # Other requests: servers that keep prompts would answer the same ones at once.
        after = await unloaded(entrants, work, ALONE, say, "/after")
    return {
        "route": "of each server",
        "workload": work.describe(),
        "pattern": pattern.describe(),
        "slo": slo.describe(),
        "slo_text": str(slo),
        "slo_origin": "as given",
        "attainment": args.attainment,
        "baseline": names[0],
        "unloaded": before,
        "unloaded_after": after,
        "knees": knees(steps, names, args.attainment),
        "steps": steps,
        "threads": args.threads,
        "cache_mib": args.cache_mib,
        "service_environment": {},
        "notes": other_lengths(raw, args.max_tokens),
    }, raw


def settled(peer: Peer) -> Callable[[], Awaitable[None]]:
    """Waits after a step until the server is at rest."""

    async def rest() -> None:
        try:
            await asyncio.to_thread(peer.rest)
        except Ended as error:
            say(f"{peer.name} ended: {error}")  # its further requests fail, and are counted

    return rest


def other_lengths(raw: Raw, tokens: int) -> list[str]:
    """A note if answers did not have the length that all should have."""
    done = [record for records in raw.values() for record in records if record.outcome == OK]
    other = sum(record.completion_tokens != tokens for record in done)
    return [f"{other} of {len(done)} answers had not {tokens} tokens"] if other else []


def brief(result: dict[str, Any]) -> str:
    """A row per server: TTFT without load, the knee, and the most good answers per second."""
    target = f"{result['attainment']:.0%}"
    header = ["", "TTFT without load, ms", f"highest rate with {target} good"]
    header += [f"crosses {target} at", "most good answers"]
    rows = []
    for name, knee in result["knees"].items():
        most = max(s["offered_goodput"] for s in result["steps"] if s["method"] == name)
        alone = f"{1000 * result['unloaded'][name]['ttft_s']:.0f}"
        rate = "below the lowest" if knee["rate"] is None else f"{knee['rate']:g}/s"
        crossing = "not reached" if knee["crossing"] is None else f"{knee['crossing']:.2f}/s"
        rows.append([name, alone, rate, crossing, f"{most:.2f}/s"])
    return table(header, rows) + f"\nGood: {result['slo_text']}.\n"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
