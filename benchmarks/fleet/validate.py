"""The simulator against a real gateway with real workers, on one trace.

    python -m benchmarks.fleet.validate [--workers 2 4] [--rate 0.3] [--requests 60] [--unpaced]

Requests are those of `benchmarks.fleet.routing`: sets of the demo's documents by popularity (Zipf),
shuffled, at the times of a Poisson process; no slower tier, all memory empty at the beginning.
First some requests are sent one by one: a line through their TTFT by operations gives the costs of
a worker, measured in this run. Then the trace runs. The same requests, those that were sent alone
first and then the trace at the times at which it was sent, go through the simulator, with several
namings of the documents, since homes are drawn by chance of a name.

Workers are paced (`benchmarks.fleet.paced_worker`), so that they do not slow each other on few
cores. With `--unpaced` they are as they serve, and the simulator lets them share the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.fleet import paced_worker
from benchmarks.fleet.routing import body, trace, wait_for_all
from benchmarks.fleet.simulator import Fleet, Outcome, Request, Simulation
from demo.corpus_files import read_documents
from loadtest import local_service
from loadtest.traffic.routes import CorpusDocument
from service.messages.replies import WorkerLoad
from service.settings import demo_model
from tuning.environment import describe

OUT = Path("benchmarks/results/fleet/validate.json")
NAMINGS = 20
ALONE = 6  # prompts that costs are measured with, each twice
PAUSE_S = 5.0
MIB = 1 << 20


@dataclass(frozen=True)
class Answer:
    """A request that was answered.

    Attributes:
        at: when it was sent, in seconds of the run.
        titles: of its documents, in the order in which it named them.
    """

    at: float
    done_at: float
    titles: list[str]
    reply: dict[str, Any]

    @property
    def documents(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.reply["cache"]["documents"]
        return found

    @property
    def names(self) -> list[str]:
        """Titles of its documents in the order of the prompt."""
        return [self.titles[int(d["doc_id"].removeprefix("inline-")) - 1] for d in self.documents]

    @property
    def ttft_s(self) -> float:
        return float(self.reply["timing"]["ttft_s"])


@dataclass(frozen=True)
class Costs:
    """What was measured of a worker alone."""

    load: WorkerLoad
    gateway_s: float
    question: int
    repair: float


async def send(url: str, bodies: Sequence[Any], rate: float, seed: int) -> list[Answer]:
    """Send requests in an open loop; with a rate of 0 one after the other.

    Raises:
        RuntimeError: one was not answered.
    """
    source, began = random.Random(seed), time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=600.0) as http:

        async def one(content: Any) -> Answer:
            at = time.monotonic() - began
            reply = await http.post("/v1/rag/generate", json=content)
            if reply.status_code != 200:
                raise RuntimeError(f"{reply.status_code} {reply.text[:300]}")
            titles = [document["title"] for document in content["inline_documents"]]
            return Answer(at, time.monotonic() - began, titles, reply.json())

        if not rate:
            return [await one(content) for content in bodies]
        tasks: list[asyncio.Task[Answer]] = []
        for content in bodies:
            tasks.append(asyncio.create_task(one(content)))
            await asyncio.sleep(source.expovariate(rate))
        return list(await asyncio.gather(*tasks))


def keep(args: argparse.Namespace, *measured: Any) -> None:
    """Writes what was measured, as it is, to the folder that was asked for."""
    if args.raw is not None:
        args.raw.mkdir(parents=True, exist_ok=True)
        path = args.raw / f"{os.environ['KVSTITCH_WORKERS']}.json"
        path.write_text(json.dumps(measured, default=vars), encoding="utf-8")


def costs(alone: Sequence[Answer], answers: Sequence[Answer]) -> Costs:
    """A worker's costs, by requests that were sent one by one; sizes by all."""
    flops = np.array([answer.reply["cache"]["flops"] for answer in alone])
    ttft_s = np.array([answer.ttft_s for answer in alone])
    flop_s, gateway_s = np.polyfit(flops, ttft_s, 1)
    documents = sum(d["tokens"] for a in alone for d in a.documents)
    prompts = [answer.reply["usage"]["prompt_tokens"] for answer in alone]
    token_flops = statistics.median(
        a.reply["cache"]["full_prefill_flops"] / a.reply["usage"]["prompt_tokens"] for a in answers
    )
    question = (sum(prompts) - documents) / len(alone)
    shares = []
    for answer, worked in zip(alone, flops, strict=True):
        if len(answer.documents) > 1 and all(d["tier"] != "cold" for d in answer.documents):
            tokens = answer.reply["usage"]["prompt_tokens"]
            shares.append((worked / token_flops - question) / tokens)
    chunks = [d for a in (*alone, *answers) for d in a.documents if d["stored_bytes"]]
    if not shares or not chunks:
        raise RuntimeError("no document was found in memory: give workers more memory or pauses")
    return Costs(
        WorkerLoad(
            token_s=float(flop_s) * token_flops,
            step_s=statistics.median(a.reply["timing"]["tpot_s"] for a in alone),
            step_sequence_s=0.0,
            token_bytes=sum(d["stored_bytes"] for d in chunks) / sum(d["tokens"] for d in chunks),
        ),
        max(0.0, float(gateway_s)),
        round(question),
        max(0.0, statistics.mean(shares)),
    )


def routed(url: str) -> dict[str, float]:
    """How many documents went where, as the gateway counts."""
    found = dict.fromkeys(("here", "elsewhere", "nowhere"), 0.0)
    for line in httpx.get(f"{url}/metrics", timeout=60.0).text.splitlines():
        if line.startswith("kvstitch_routed_documents_total{"):
            found[line.split('"')[1]] = float(line.rsplit(" ", 1)[1])
    return found


@dataclass(frozen=True)
class Run:
    """What a real service did.

    Attributes:
        alone: answers of the requests that were sent one by one.
        answers: of the trace.
        where: how many of the trace's documents the gateway believed to be where.
    """

    alone: list[Answer]
    answers: list[Answer]
    where: dict[str, float]


def run_real(args: argparse.Namespace, workers: int) -> Run:
    """A fresh service, and all requests."""
    documents = [CorpusDocument(d.doc_id, d.title, d.text) for d in read_documents()]
    os.environ |= {
        "KVSTITCH_WORKERS": str(workers),
        "KVSTITCH_THREADS": "1",
        "KVSTITCH_ROUTING": "cost",
        "KVSTITCH_MEMORY_TIER_MIB": str(args.memory_mib),
        "KVSTITCH_SSD_TIER_GIB": "0",
        "KVSTITCH_PREFIX_CACHE": "false",
        "KVSTITCH_GATE_SAMPLE": "0",
        paced_worker.TOKEN_S: str(args.token_s),
        paced_worker.STEP_S: str(args.step_s),
    }
    program = local_service.PROGRAM if args.unpaced else paced_worker.SERVICE
    with (
        tempfile.TemporaryDirectory(prefix="kvstitch-validate-") as folder,
        local_service.service(Path(folder), demo_model(), program=program) as url,
    ):
        wait_for_all(url, workers)
        prompts = [
            body("What is this?", documents[-1 - n :: -ALONE][: 1 + n % 4]) for n in range(ALONE)
        ]
        alone = asyncio.run(send(url, prompts, 0.0, 0))
        time.sleep(PAUSE_S)  # what was computed is stored when there is nothing else to do
        alone += asyncio.run(send(url, prompts, 0.0, 0))
        before = routed(url)
        requests = trace(documents, args, args.seed)
        answers = asyncio.run(send(url, requests, args.rate * workers, args.seed))
        after = routed(url)
    keep(args, alone, answers, before, after)
    return Run(alone, answers, {name: after[name] - before[name] for name in after})


def replay(args: argparse.Namespace, workers: int) -> Run:
    """What `run_real` returned when its answers were kept."""
    text = (args.replay / f"{workers}.json").read_text(encoding="utf-8")
    alone, answers, before, after = json.loads(text)
    alone, answers = ([Answer(**answer) for answer in kept] for kept in (alone, answers))
    return Run(alone, answers, {name: after[name] - before[name] for name in after})


def simulate(args: argparse.Namespace, workers: int, measured: Costs, real: Run) -> list[Outcome]:
    """The same requests, once for each naming of the documents; what the trace's took."""
    sizes = {
        name: d["tokens"]
        for a in (*real.alone, *real.answers)
        for name, d in zip(a.names, a.documents, strict=True)
    }
    numbers = {chunk: number for number, chunk in enumerate(sizes)}
    outcomes = []
    for naming in range(NAMINGS):
        shift = naming * len(sizes)
        fleet = Fleet(
            workers,
            measured.load,
            chunk=0,
            question=measured.question,
            repair=measured.repair,
            memory=int(args.memory_mib * MIB / workers / measured.load.token_bytes),
            slower_tiers=False,
            policy="cost",
            running=32,
            cores=(os.cpu_count() or 1) if args.unpaced else 0,
            sizes=[*sizes.values()] * NAMINGS,
            gateway_s=measured.gateway_s,
        )

        def request(answer: Answer, at: float) -> Request:
            documents = [numbers[name] + shift for name in answer.names]  # noqa: B023
            return Request(at, documents, answer.reply["usage"]["completion_tokens"])

        simulation = Simulation(fleet)
        simulation.run([request(a, PAUSE_S * n) for n, a in enumerate(real.alone)])
        simulation.outcome = Outcome()
        begin = PAUSE_S * len(real.alone)
        sent = sorted(real.answers, key=lambda answer: answer.at)
        outcomes.append(simulation.run([request(a, begin + a.at) for a in sent]))
        outcomes[-1].end -= begin
    return outcomes


def figures(
    where: dict[str, float], reused: float, ttft_s: Sequence[float], tokens: float, end: float
) -> dict[str, float]:
    """What is compared."""
    documents = sum(where.values())
    return {
        **{f"routed_{name}": where.get(name, 0) / documents for name in ("here", "elsewhere")},
        "reused_token_share": reused,
        "ttft_mean_s": statistics.mean(ttft_s),
        "ttft_p95_s": float(np.percentile(ttft_s, 95)),
        "answer_tokens_per_s": tokens / end,
    }


def compared(args: argparse.Namespace, workers: int) -> dict[str, Any]:
    """One real run and its simulations."""
    run = (run_real if args.replay is None else replay)(args, workers)
    measured, answers = costs(run.alone, run.answers), run.answers
    tokens = sum(d["tokens"] for a in answers for d in a.documents)
    reused = sum(d["tokens"] for a in answers for d in a.documents if d["tier"] == "memory")
    written = sum(answer.reply["usage"]["completion_tokens"] for answer in answers)
    span_s = max(answer.done_at for answer in answers) - min(answer.at for answer in answers)
    real = figures(run.where, reused / tokens, [a.ttft_s for a in answers], written, span_s)
    first = min(answer.at for answer in answers)
    each = [
        figures(
            {name: float(count) for name, count in outcome.routed.items()},
            outcome.reused_tokens / outcome.document_tokens,
            outcome.ttft_s,
            written,
            outcome.end - first,
        )
        for outcome in simulate(args, workers, measured, run)
    ]
    mean = {name: statistics.mean(one[name] for one in each) for name in real}
    return {
        "workers": workers,
        "requests": len(answers),
        "rate": args.rate * workers,
        "pace_token_s": 0.0 if args.unpaced else args.token_s,
        "costs": {
            "token_s": measured.load.token_s,
            "step_s": measured.load.step_s,
            "token_bytes": measured.load.token_bytes,
            "repair": measured.repair,
            "question_tokens": measured.question,
            "gateway_s": measured.gateway_s,
        },
        "real": _rounded(real),
        "simulated": _rounded(mean),
        "simulated_spread": _rounded({n: statistics.pstdev(one[n] for one in each) for n in real}),
        "simulated_to_real": _rounded({n: mean[n] / max(1e-9, real[n]) for n in real}),
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.validate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, nargs="+", default=[2, 4])
    add("--requests", type=int, default=60)
    add("--rate", type=float, default=0.3, help="requests per second and worker")
    add("--unpaced", action="store_true", help="workers as they serve")
    add("--token-s", type=float, default=3e-3, help="pace of prefill")
    add("--step-s", type=float, default=0.03, help="pace of a decode step")
    add("--top-k", type=int, default=4)
    add("--alpha", type=float, default=0.9, help="of Zipf's law")
    add("--topic-size", type=int, default=0)
    add("--memory-mib", type=int, default=24, help="of all memory tiers together")
    add("--seed", type=int, default=0)
    add("--raw", type=Path, help="folder for all answers")
    add("--replay", type=Path, help="such a folder: its run is simulated again")
    add("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows = []
    for workers in args.workers:
        rows.append(compared(args, workers))
        print(json.dumps(rows[-1], indent=1), flush=True)
    left_out = ("out", "workers", "requests", "raw", "replay")
    shape = {name: getattr(args, name) for name in vars(args) if name not in left_out}
    result = {"environment": describe(), **shape, "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
