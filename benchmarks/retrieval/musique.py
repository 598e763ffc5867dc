"""MuSiQue through the HTTP API: ingest all passages, ask all questions at a given concurrency.

    python -m benchmarks.retrieval.musique --data FILE --concurrency 8 [--url URL] [--out FILE]

Without --url a service is started on a fresh data folder and stopped afterwards; its settings are
KVSTITCH_* variables, by default the demo model's. Answers are streamed. TTFT and TPOT are measured
twice, by this client and by the service's histograms, and must agree within a bucket. The answers
themselves are not rated. Only the HTTP API is used.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from demo.process import free_port, service
from kvstitch.client.events import LineReader
from kvstitch_tune.records import describe

ANSWER_S = 300.0  # a request that takes longer has hung
BATCH = 200
QUANTILES = (0.5, 0.95)
HISTOGRAMS = {
    "ttft": "kvstitch_request_ttft_seconds",
    "tpot": "kvstitch_request_tpot_seconds",
}
TOKENS = "kvstitch_prompt_tokens_total"


@dataclass(frozen=True)
class Sample:
    """One request; times are in seconds as the client measured them, None if there are none."""

    question: str
    error: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float = 0.0
    tokens: int = 0
    tiers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Percentile:
    """One percentile, measured by the client and estimated from the service's histogram.

    The estimate is made as Prometheus does, within the bucket with the edges `bucket`.
    """

    name: str
    quantile: float
    client_s: float
    metrics_s: float
    bucket: tuple[float, float]
    agree: bool


Counts = dict[tuple[str, str], float]  # (sample name, value of its only label or "") → value


def counts(metrics: str) -> Counts:
    """The samples of a /metrics page that have at most one label."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if len(sample.labels) < 2
    }


def since(before: Counts, after: Counts, name: str) -> dict[str, float]:
    """By label value, the increase between two scrapes."""
    return {at: n - before.get((name, at), 0.0) for (of, at), n in after.items() if of == name}


def percentile(
    name: str, quantile: float, client: list[float], cumulative: dict[str, float]
) -> Percentile:
    """Compares a percentile; `cumulative` has counts by upper edge, as in /metrics."""
    edges = sorted(map(float, cumulative))
    below = [n for _, n in sorted(cumulative.items(), key=lambda item: float(item[0]))]
    rank = quantile * below[-1]
    at = bisect_left(below, rank)
    low, high = (edges[at - 1] if at else 0.0), edges[at]
    inside = below[at] - (below[at - 1] if at else 0.0)
    share = (rank - (below[at - 1] if at else 0.0)) / inside if inside else 1.0
    estimate = low if math.isinf(high) else low + share * (high - low)
    seen = sorted(client)[max(0, math.ceil(quantile * len(client)) - 1)]
    agree = abs(bisect_left(edges, seen) - at) <= 1
    return Percentile(name, quantile, seen, estimate, (low, high), agree)


def passage_id(text: str) -> str:
    """The doc_id that a passage gets."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The questions, and one document for every distinct passage."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    passages = dict.fromkeys(text for row in rows for text in row["passages"])
    documents = [{"doc_id": passage_id(text), "text": text} for text in passages]
    return [row["question"] for row in rows], documents


async def ingest(http: httpx.AsyncClient, documents: list[dict[str, str]]) -> int:
    """Ingests the documents and waits for their KV.

    Returns:
        Number of chunks.

    Raises:
        RuntimeError: a document could not be ingested.
    """
    chunks = 0
    for start in range(0, len(documents), BATCH):
        batch = documents[start : start + BATCH]
        reply = await http.post("/admin/precompute", json={"documents": batch})
        if reply.status_code != 202:
            raise RuntimeError(f"POST /admin/precompute: {reply.status_code} {reply.text[:300]}")
        job = reply.json()
        while job["state"] in ("queued", "running"):
            await asyncio.sleep(0.5)
            job = (await http.get(f"/admin/jobs/{job['job_id']}")).raise_for_status().json()
        if job["state"] == "failed":
            raise RuntimeError(f"the ingest job failed: {json.dumps(job)[:300]}")
        chunks += job["chunks"]
        print(f"  {start + len(batch)} documents, {chunks} chunks", file=sys.stderr)
    return chunks


async def ask(http: httpx.AsyncClient, question: str, fields: dict[str, Any]) -> Sample:
    """One streamed answer; any failure becomes the sample's `error`."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await _ask(http, question, fields)
    except TimeoutError:
        return Sample(question, f"no answer in {ANSWER_S:.0f} s")
    except httpx.HTTPError as error:
        return Sample(question, f"{type(error).__name__}: {error}")


async def _ask(http: httpx.AsyncClient, question: str, fields: dict[str, Any]) -> Sample:
    started = time.perf_counter()
    first = last = None
    body = {"question": question, "stream": True, "prefix_cache": False, **fields}
    async with http.stream("POST", "/v1/rag/generate", json=body) as reply:
        if reply.status_code != 200:
            text = (await reply.aread()).decode(errors="replace")
            return Sample(question, f"HTTP {reply.status_code}: {text[:300]}")
        async for event, data in _events(reply):
            now = time.perf_counter()
            if event == "token":
                first, last = first or now, now
            elif event == "error":
                return Sample(question, str(data["error"]["message"]))
            elif event == "done":
                tokens = int(data["usage"]["completion_tokens"])
                # An answer without text has no token event; `done` is then its first event.
                ttft = (first or now) - started
                tpot = (now - first) / (tokens - 1) if first and last and tokens > 1 else None
                tiers = [str(d["tier"]) for d in data["cache"]["documents"]]
                return Sample(question, None, ttft, tpot, now - started, tokens, tiers)
    return Sample(question, "the stream ended without `done`")


async def _events(reply: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    reader = LineReader()
    async for line in reply.aiter_lines():
        if (event := reader.feed(line)) is not None:
            yield event


async def measure(
    url: str,
    questions: list[str],
    documents: list[dict[str, str]],
    *,
    concurrency: int,
    fields: dict[str, Any],
) -> dict[str, Any]:
    """Runs everything; returns a JSON-ready record. `fields` are those of the request body."""
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, limits=limits) as http:
        started = time.perf_counter()
        chunks = await ingest(http, documents)
        ingest_s = time.perf_counter() - started
        # The first answer of a fresh process warms it up.
        await ask(http, questions[0], fields)
        before = counts((await http.get("/metrics")).text)
        places = asyncio.Semaphore(concurrency)

        async def placed(question: str) -> Sample:
            async with places:
                return await ask(http, question, fields)

        started = time.perf_counter()
        samples = await asyncio.gather(*map(placed, questions))
        asked_s = time.perf_counter() - started
        after = counts((await http.get("/metrics")).text)
    good = [s for s in samples if s.error is None]
    client = {
        "ttft": [s.ttft_s for s in good if s.ttft_s is not None],
        "tpot": [s.tpot_s for s in good if s.tpot_s is not None],
    }
    return {
        "documents": len(documents),
        "chunks": chunks,
        "ingest_s": ingest_s,
        "concurrency": concurrency,
        "request": fields,
        "completed": len(good),
        "failed": len(samples) - len(good),
        "errors": sorted({s.error for s in samples if s.error is not None}),
        "asked_s": asked_s,
        "latency": [
            asdict(percentile(name, q, client[name], since(before, after, f"{series}_bucket")))
            for name, series in HISTOGRAMS.items()
            for q in QUANTILES
            if client[name]
        ],
        "prompt_tokens": since(before, after, TOKENS),
        "samples": [asdict(s) for s in samples],
    }


def report(record: dict[str, Any]) -> str:
    """The record as text."""
    lines = [
        f"{record['documents']} documents, {record['chunks']} chunks, ingested in "
        f"{record['ingest_s']:.1f} s",
        f"{record['completed']} completed, {record['failed']} failed at concurrency "
        f"{record['concurrency']}, in {record['asked_s']:.1f} s",
        *(f"  {error}" for error in record["errors"]),
        "                client   /metrics          bucket   agree within a bucket",
    ]
    for row in record["latency"]:
        low, high = (f"{edge:g}" for edge in row["bucket"])
        bucket, agree = f"({low}, {high}]", "yes" if row["agree"] else "NO"
        lines.append(
            f"{row['name']} p{100 * row['quantile']:<3.0f} {row['client_s']:12.4f} s "
            f"{row['metrics_s']:8.4f} s {bucket:>14}   {agree}"
        )
    tokens = ", ".join(f"{n:.0f} {source}" for source, n in record["prompt_tokens"].items())
    return "\n".join([*lines, f"prompt tokens: {tokens}"])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.musique", description=__doc__
    )
    parser.add_argument("--data", type=Path, required=True, help="JSONL: question, passages")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--url", help="a running service; default: start one")
    parser.add_argument("--fusion", default="a3")
    parser.add_argument("--top-k", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--out", type=Path, help="write the record as JSON")
    args = parser.parse_args()
    questions, documents = read(args.data)
    fields = {
        "fusion": {"method": args.fusion},
        "top_k": args.top_k,
        "max_tokens": args.max_tokens,
    }
    with ExitStack() as stack:
        url = args.url
        if url is None:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstitch-")))
            port = free_port()
            stack.enter_context(service(scratch / "data", port, scratch / "service.log"))
            url = f"http://127.0.0.1:{port}"
        work = measure(url, questions, documents, concurrency=args.concurrency, fields=fields)
        record = asyncio.run(work)
    print(report(record))
    if args.out is not None:
        full = {"what": "MuSiQue over HTTP", "environment": describe()}
        args.out.write_text(json.dumps({**full, **record}, indent=1) + "\n")
    agreed = all(row["agree"] for row in record["latency"])
    return 0 if agreed and not record["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
