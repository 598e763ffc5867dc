"""Recall of the passage that answers a follow-up question, by what is searched for it.

    python -m benchmarks.follow_ups --model FOLDER --split test --out FILE.json

off     the last question as it is
join    the service's default: fused with what the joined questions find
joined  the joined questions alone
model   what the served model makes of the conversation (of `--rewritten` conversations of a form)
whole   the question as it would be asked alone: what can be reached

Two corpora: the demo's documents, and these among the passages of Natural Questions' split.
Passages are cut as the service cuts them. How rankings are fused was chosen on the development
split.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import httpx

from benchmarks.common.provenance import provenance
from benchmarks.follow_ups.conversations import FORMS, SEED, Conversation, Form, conversations
from benchmarks.quality.tasks import natural_questions
from demo.corpus_files import read_documents
from demo.process import free_port, service
from demo.questions import Split
from demo.scenario import PROSE
from retriever import Document, LocalEmbedder, Retriever
from service.gateway.api import (
    AsyncRetriever,
    PassageSearch,
    PromptBuilder,
    SearchQuery,
    joined_query,
)
from service.settings import Settings
from tuning.environment import describe
from tuning.statistics import Bootstrap

PLACES = (1, 3, 5)
DEPTH = 5
WAYS = ("off", "join", "joined", "model", "whole")
CORPORA = ("demo", "demo among Natural Questions")
NQ_SPLITS: dict[Split, str] = {"development": "dev", "test": "test"}


@dataclass(frozen=True)
class Sample:
    """One conversation searched in one way; rank from 1, None: not among the first `DEPTH`."""

    corpus: str
    form: Form
    way: str
    question: str
    query: str
    rank: int | None
    ms: float


def rewritten(
    model: Path, asked: Sequence[Conversation], samples: int
) -> dict[Conversation, tuple[str, float]]:
    """What the served model makes of the first conversations of each form, and milliseconds.

    A rewriting that the service gave up counts as the question as it is.
    """
    out: dict[Conversation, tuple[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="kvstitch-follow-ups-") as scratch:
        data, port = Path(scratch) / "data", free_port()
        data.mkdir()
        with (
            service(data, port, data / "service.log", model),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
        ):
            for form in FORMS:
                for each in [one for one in asked if one.form == form][:samples]:
                    turns = [{"role": turn.role, "content": turn.text} for turn in each.turns]
                    body = {"messages": turns, "condense": "model", "explain": True}
                    reply = http.post("/v1/rag/generate", json=body)
                    reply.raise_for_status()
                    done = reply.json()
                    out[each] = (done["retrieval"]["query"], 1e3 * done["stages"]["condense"])
    return out


@asynccontextmanager
async def library(
    model: Path, documents: Sequence[Document]
) -> AsyncIterator[tuple[PassageSearch, int]]:
    """The service's search over these documents in this process, and their number of chunks."""
    prompts = PromptBuilder(model, settings := Settings.model_validate({}))
    with tempfile.TemporaryDirectory(prefix="kvstitch-follow-ups-") as scratch:
        inner = Retriever.in_folder(Path(scratch), LocalEmbedder(), prompts.chunking())
        retriever = AsyncRetriever(inner)
        await retriever.start()
        try:
            inner.ingest(documents)
            yield PassageSearch(retriever, settings), inner.catalog.counts().chunks
        finally:
            await retriever.close()


def searched(way: str, each: Conversation, rewriting: str | None) -> tuple[str | None, str | None]:
    """What is searched, None: nothing; and what is searched beside it."""
    question = each.turns[-1].text
    joined = joined_query(each.turns)
    match way:
        case "off":
            return question, None
        case "join":
            return question, joined
        case "joined":
            return joined or question, None
        case "model":
            return rewriting, None
    return each.whole, None


async def search_all(
    model: Path,
    corpus: str,
    split: Split,
    asked: Sequence[Conversation],
    made: dict[Conversation, tuple[str, float]],
) -> tuple[list[Sample], int]:
    """The samples, and the number of chunks."""
    documents = [Document(d.doc_id, d.text, d.title) for d in read_documents(PROSE / "documents")]
    if corpus != CORPORA[0]:
        others = dict.fromkeys(each.passage for each in natural_questions.load(NQ_SPLITS[split]))
        documents += [Document(f"nq{n}", p.text, p.title) for n, p in enumerate(others)]
    out = []
    async with library(model, documents) as (passage_search, chunks):
        passage_search.find(SearchQuery("warm up", DEPTH, mode="hybrid"))
        for each in asked:
            rewriting, model_ms = made.get(each, (None, 0.0))
            for way in WAYS:
                query, joined = searched(way, each, rewriting)
                if query is None:
                    continue
                search = SearchQuery(query, DEPTH, mode="hybrid", joined=joined)
                started = time.perf_counter()
                passages = passage_search.find(search).passages
                ms = 1e3 * (time.perf_counter() - started) + (model_ms if way == "model" else 0)
                hits = (
                    rank
                    for rank, passage in enumerate(passages, 1)
                    if each.is_gold(passage.chunk.doc_id, passage.chunk.text)
                )
                question = each.turns[-1].text
                out.append(Sample(corpus, each.form, way, question, query, next(hits, None), ms))
    return out, chunks


def figures(found: Sequence[Sample]) -> list[dict[str, Any]]:
    rows = []
    for corpus in CORPORA:
        for form in FORMS:
            for way in WAYS:
                group = [s for s in found if (s.corpus, s.form, s.way) == (corpus, form, way)]
                if not group:
                    continue
                bootstrap = Bootstrap(len(group))
                row: dict[str, Any] = {"corpus": corpus, "form": form, "way": way}
                row |= {"conversations": len(group), "ms": statistics.median(s.ms for s in group)}
                for k in PLACES:
                    hits = [float(s.rank is not None and s.rank <= k) for s in group]
                    row[f"recall@{k}"] = asdict(bootstrap.mean(hits))
                rows.append(row)
    return rows


def report(record: dict[str, Any]) -> str:
    lines = [f"# {record['what']}", "", f"{record['split']} split; hybrid search. Recall of a "
             "passage that answers [95 % bootstrap interval], and median milliseconds of the "
             f"search; rewritten by {record['model']}."]  # fmt: skip
    for corpus in CORPORA:
        lines += ["", f"## {corpus}: {record['chunks'][corpus]} chunks", "",
                  "| question | searched | conversations | recall@1 | recall@3 | recall@5 | ms |",
                  "|---|---|---|---|---|---|---|"]  # fmt: skip
        for row in (row for row in record["figures"] if row["corpus"] == corpus):
            cells = [row["form"], row["way"], str(row["conversations"])]
            for k in PLACES:
                one = row[f"recall@{k}"]
                cells.append(f"{one['mean']:.3f} [{one['low']:.3f}, {one['high']:.3f}]")
            lines.append(f"| {' | '.join(cells)} | {row['ms']:.0f} |")
    return "\n".join(lines) + "\n"


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    asked = conversations(args.split)
    made = rewritten(args.model, asked, args.rewritten) if args.rewritten else {}
    found: list[Sample] = []
    chunks: dict[str, int] = {}
    for corpus in CORPORA:
        samples, chunks[corpus] = await search_all(args.model, corpus, args.split, asked, made)
        found += samples
    return {
        "what": "Follow-up questions: recall by what is searched",
        "environment": describe(),
        "model": args.model.name,
        "split": args.split,
        "seed": SEED,
        "chunks": chunks,
        "figures": figures(found),
        "samples": [asdict(sample) for sample in found],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.follow_ups",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--split", choices=get_args(Split), default="development")
    parser.add_argument("--rewritten", type=int, default=25, help="conversations of each form")
    parser.add_argument("--out", type=Path, help="write the record as JSON, and beside it as .md")
    args = parser.parse_args()
    record = asyncio.run(measure(args))
    print(report(record))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        args.out.with_suffix(".md").write_text(report(record) + provenance(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
