"""Policies of routing on one trace: how often are documents in the chosen worker's memory tier?

    python -m benchmarks.fleet.routing [--workers 2] [--requests 150] [--rate 2.0]
    python -m benchmarks.fleet.routing --model "$(kvstitch model path smollm2)" --threads 1 \
        --policies cost round_robin --rounds 3 --requests 30 --rate 0.4 --memory-mib 64

The requests are loadtest's: sets of the demo's documents, drawn by popularity (Zipf) and sent in a
shuffled order, at the times of a Poisson process. Every policy gets the same requests at the same
times, each from a fresh service whose corpus has been precomputed and whose memory tiers together
hold a part of it. Without an SSD tier (the default here) what no memory tier holds is computed, as
with a large model whose KV is not worth a read from disk.

With `--topic-size` the documents of a request are of one topic, as those that a search finds:
topics are drawn by popularity, and the request's documents from the topic's.

With `--paced` every worker is as fast as if it had a machine of its own
(`benchmarks.fleet.paced_worker`): it computes and stores as always, and sleeps until the pace.

In every round each policy has its turn, and the next round begins with another one. TTFT is
compared request by request with that of the policy named last (`paired`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from benchmarks.fleet import paced_worker
from demo.corpus_files import read_documents
from kvstitch.service.settings import demo_model
from kvstitch_tune.records import describe
from loadtest import local_service
from loadtest.traffic.corpus_reader import CorpusQuestion
from loadtest.traffic.routes import CorpusDocument
from loadtest.traffic.workloads import Zipf

OUT = Path("benchmarks/results/fleet/routing.json")
POLICIES = ("cost", "round_robin", "least_load", "longest_prefix")
Body = dict[str, Any]
QUESTION = "What is {title} known for?"
MAX_TOKENS = 16
TOKEN_S, STEP_S = 3e-3, 0.03  # of `--paced`: seconds of a prefilled token, and of a decode step


def trace(documents: Sequence[CorpusDocument], args: argparse.Namespace, seed: int) -> list[Body]:
    """Bodies of requests."""
    asked = {d.doc_id: CorpusQuestion(QUESTION.format(title=d.title), d.doc_id) for d in documents}
    if not args.topic_size:
        zipf = Zipf(documents, list(asked.values()), args.top_k, alpha=args.alpha)
        return [
            body(request.question, request.documents)
            for request in islice(zipf.requests(seed), args.requests)
        ]
    source = random.Random(seed)
    mixed = random.Random(0).sample(list(documents), len(documents))
    size = args.topic_size
    topics = [mixed[start : start + size] for start in range(0, len(mixed) - size + 1, size)]
    weights = [1 / rank**args.alpha for rank in range(1, len(topics) + 1)]
    drawn = [
        source.sample(source.choices(topics, weights)[0], args.top_k) for _ in range(args.requests)
    ]
    return [body(asked[chosen[0].doc_id].text, chosen) for chosen in drawn]


def body(question: str, documents: Sequence[CorpusDocument]) -> Body:
    return {
        "question": question,
        "inline_documents": [{"title": d.title, "text": d.text} for d in documents],
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
    }


async def send(url: str, requests: Sequence[dict[str, Any]], rate: float, seed: int) -> list[Any]:
    """Send requests in an open loop; the answers, and None for those that failed."""
    source = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=120.0) as http:

        async def one(body: dict[str, Any]) -> Any:
            reply = await http.post("/v1/rag/generate", json=body)
            return reply.json() if reply.status_code == 200 else None

        tasks: list[asyncio.Task[Any]] = []
        for body in requests:
            tasks.append(asyncio.create_task(one(body)))
            await asyncio.sleep(source.expovariate(rate))
        return list(await asyncio.gather(*tasks))


def measure(args: argparse.Namespace, policy: str, number: int) -> dict[str, Any]:
    """One round of one policy."""
    documents = [CorpusDocument(d.doc_id, d.title, d.text) for d in read_documents()]
    requests = trace(documents, args, args.seed + number)
    os.environ |= {
        "KVSTITCH_WORKERS": str(args.workers),
        "KVSTITCH_ROUTING": policy,
        "KVSTITCH_MEMORY_TIER_MIB": str(args.memory_mib),
        "KVSTITCH_SSD_TIER_GIB": str(args.ssd_gib),
        "KVSTITCH_THREADS": str(args.threads),
        paced_worker.TOKEN_S: str(TOKEN_S),
        paced_worker.STEP_S: str(STEP_S),
    }
    program = paced_worker.SERVICE if args.paced else local_service.PROGRAM
    with (
        tempfile.TemporaryDirectory(prefix="kvstitch-routing-") as folder,
        local_service.service(Path(folder), args.model, program=program) as url,
    ):
        wait_for_all(url, args.workers)
        local_service.ingest(url, documents)
        answers = asyncio.run(send(url, requests, args.rate, args.seed + number))
    good = [answer for answer in answers if answer is not None]
    found = [document["tier"] for a in good for document in a["cache"]["documents"]]
    return {
        "policy": policy,
        "round": number,
        "failed": len(answers) - len(good),
        "tiers": {tier: found.count(tier) for tier in sorted(set(found))},
        "ttft_s": [round(answer["timing"]["ttft_s"], 4) for answer in good],
    }


def wait_for_all(url: str, workers: int) -> None:
    """`ready` says that one worker is; a comparison needs all."""
    with httpx.Client(base_url=url, timeout=30.0) as http:
        while sum(w["reason"] is None for w in http.get("/status").json()["workers"]) < workers:
            pass


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By policy: share of documents in the chosen worker's memory tier, and TTFT."""
    out: dict[str, Any] = {}
    for policy in dict.fromkeys(one["policy"] for one in rounds):
        own = [one for one in rounds if one["policy"] == policy]
        ttft = sorted(t for one in own for t in one["ttft_s"])
        documents = sum(sum(one["tiers"].values()) for one in own)
        out[policy] = {
            "local_hit_rate": round(
                sum(one["tiers"].get("memory", 0) for one in own) / documents, 4
            ),
            "ttft_p50_s": round(statistics.median(ttft), 4),
            "ttft_p95_s": round(ttft[int(0.95 * (len(ttft) - 1))], 4),
            "ttft_p95_s_by_round": [
                round(sorted(one["ttft_s"])[int(0.95 * (len(one["ttft_s"]) - 1))], 4) for one in own
            ],
            "failed": sum(one["failed"] for one in own),
        }
    return out


def paired(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By policy: its requests' TTFT to that of the same ones under the policy named last.

    Returns:
        The ratio of the means of each round, and the median of all requests' ratios with its
        quartiles; rounds in which something failed do not count.
    """
    base = [one["policy"] for one in rounds if one["round"] == 0][-1]
    whole = {(o["policy"], o["round"]): o["ttft_s"] for o in rounds if not o["failed"]}
    out: dict[str, Any] = {}
    for policy in dict.fromkeys(one["policy"] for one in rounds):
        both = [
            (whole[policy, number], whole[base, number])
            for number in sorted({one["round"] for one in rounds})
            if {(policy, number), (base, number)} <= whole.keys()
        ]
        if policy == base or not both:
            continue
        ratios = [a / b for own, other in both for a, b in zip(own, other, strict=True)]
        out[policy] = {
            "against": base,
            "ratio_of_means_by_round": [
                round(statistics.mean(own) / statistics.mean(other), 3) for own, other in both
            ],
            "median_ratio": round(statistics.median(ratios), 3),
            "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]],
            "requests": len(ratios),
        }
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=Path, default=demo_model(), help="folder; default: the demo's")
    add("--workers", type=int, default=2)
    add("--threads", type=int, default=0, help="of each worker; 0: cores / workers")
    add("--requests", type=int, default=150, help="of a round")
    add("--rounds", type=int, default=1)
    add("--rate", type=float, default=2.0, help="requests per second")
    add("--top-k", type=int, default=4)
    add("--alpha", type=float, default=0.7, help="of Zipf's law")
    add("--topic-size", type=int, default=0, help="documents of a topic; 0: no topics")
    add("--memory-mib", type=int, default=24, help="of all memory tiers together")
    add("--ssd-gib", type=float, default=0.0)
    add("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    add("--paced", action="store_true", help="workers that do not slow each other")
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    for number in range(args.rounds):
        shift = number % len(args.policies)
        for policy in (*args.policies[shift:], *args.policies[:shift]):
            rounds.append(measure(args, policy, number))
            print(json.dumps(summary(rounds), indent=1), file=sys.stderr, flush=True)
    shape = {name: getattr(args, name) for name in vars(args) if name not in ("out", "model")}
    result = {
        "environment": describe(),
        "model": args.model.name,
        **shape,
        "summary": summary(rounds),
        "paired": paired(rounds),
        "rounds": rounds,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if not any(one["failed"] for one in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
