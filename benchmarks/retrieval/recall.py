"""Recall of dense, sparse and hybrid search on MuSiQue's passages.

    python -m benchmarks.retrieval.recall --data FILE [--url URL | --library] [--out FILE]

All distinct passages of all questions are ingested. A question is used if some of its own passages
contain an accepted answer; these passages should be found. The search returns chunks, and the rank
of a passage is that of its best chunk. For each k there are two means over questions: recall, the
share of a question's passages among the first k, and hit, whether any is among them. `first_chunks`
is the same among the k chunks of a request with top_k = k, several of which can be of one passage.

Without --url and --library a service is started on a new folder with a random model, because
retrieval does not depend on the model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from benchmarks.common.provenance import provenance
from benchmarks.retrieval.musique import passage_id, read
from benchmarks.retrieval.recall_targets import CHUNK_TOKENS, Target, opened
from kvstitch.retriever import SearchMode
from kvstitch_tune.records import describe
from kvstitch_tune.statistics import Bootstrap

MODES: tuple[SearchMode, ...] = get_args(SearchMode)
PLACES = (5, 10)
DEPTH = 64  # chunks to request, so that the first ten passages are among them


@dataclass(frozen=True)
class Question:
    """A question; `wanted` are ids of its passages that contain an accepted answer."""

    text: str
    wanted: frozenset[str]


@dataclass(frozen=True)
class Found:
    """Results of one question in one mode: doc_ids of the chunks, best first, by top_k."""

    question: str
    mode: SearchMode
    wanted: list[str]
    chunks: dict[int, list[str]]

    @property
    def passages(self) -> list[str]:
        return list(dict.fromkeys(self.chunks[DEPTH]))


def answerable(path: Path) -> list[Question]:
    """The questions with a passage that contains an accepted answer as whole words."""
    questions = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        pattern = "|".join(
            rf"(?<!\w){re.escape(answer.lower())}(?!\w)" for answer in row["answers"]
        )
        wanted = [p for p in row["passages"] if re.search(pattern, p.lower())]
        if wanted:
            questions.append(Question(row["question"], frozenset(map(passage_id, wanted))))
    return questions


async def ask(target: Target, questions: Sequence[Question]) -> list[Found]:
    found = []
    for question in questions:
        for mode in MODES:
            chunks = {
                top_k: await target.search(question.text, top_k, mode) for top_k in (*PLACES, DEPTH)
            }
            found.append(Found(question.text, mode, sorted(question.wanted), chunks))
    return found


def recall(found: Found, ranked: Sequence[str], k: int) -> float:
    return len(set(found.wanted) & set(ranked[:k])) / len(found.wanted)


def figures(found: Sequence[Found]) -> list[dict[str, Any]]:
    """One row for each mode and k, with 95 % bootstrap intervals over questions.

    `less_dense` and `less_sparse` are differences in recall, question by question.
    """
    by_mode = {mode: [one for one in found if one.mode == mode] for mode in MODES}
    bootstrap = Bootstrap(len(by_mode["dense"]))
    rows = []
    for k in PLACES:
        values = {mode: [recall(o, o.passages, k) for o in by_mode[mode]] for mode in MODES}
        for mode in MODES:
            first = [recall(one, one.chunks[k], k) for one in by_mode[mode]]
            less = {
                f"less_{other}": asdict(
                    bootstrap.mean(
                        [a - b for a, b in zip(values[mode], values[other], strict=True)]
                    )
                )
                for other in MODES[:2]
                if mode == "hybrid"
            }
            rows.append(
                {
                    "mode": mode,
                    "k": k,
                    "recall": asdict(bootstrap.mean(values[mode])),
                    "hit": asdict(bootstrap.mean([float(value > 0) for value in values[mode]])),
                    "first_chunks": {
                        "recall": asdict(bootstrap.mean(first)),
                        "hit": asdict(bootstrap.mean([float(value > 0) for value in first])),
                    },
                    **less,
                }
            )
    return rows


def hybrid_holds(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether hybrid recall is at least that of dense and of sparse search, at every k."""
    recalls = {(row["mode"], row["k"]): row["recall"]["mean"] for row in rows}
    return all(recalls["hybrid", k] >= recalls[mode, k] for mode in MODES for k in PLACES)


def report(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    lines = [
        f"# {record['what']}",
        "",
        f"{record['documents']} passages in {record['chunks']} chunks; {record['questions']} "
        f"questions with an answer in their passages, {record['wanted']:.1f} such passages each. "
        f"Through {record['through']}. Means over questions [95 % bootstrap interval].",
        "",
        "| search | k | recall | hit | recall, first k chunks | hit, first k chunks |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["figures"]:
        first = row["first_chunks"]
        cells = [row["mode"], str(row["k"])]
        cells += map(_cell, (row["recall"], row["hit"], first["recall"], first["hit"]))
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for row in record["figures"]:
        for other in MODES[:2]:
            if f"less_{other}" in row:
                difference = _cell(row[f"less_{other}"], sign="+")
                lines.append(f"Recall@{row['k']} of hybrid less {other}: {difference}.")
    return "\n".join(lines) + "\n"


def _cell(estimate: dict[str, float], sign: str = "") -> str:
    mean, low, high = (f"{estimate[name]:{sign}.3f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    _, documents = read(args.data)
    questions = answerable(args.data)
    started = time.perf_counter()
    async with opened(
        url=args.url, library=args.library, api_key=args.api_key, chunk_tokens=args.chunk_tokens
    ) as target:
        chunks = await target.ingest(documents)
        ingest_s = time.perf_counter() - started
        found = await ask(target, questions)
    return {
        "what": "Recall of passages that hold the answer, MuSiQue",
        "environment": describe(),
        "through": "the library" if args.library else "the HTTP API",
        "chunk_tokens": None if args.url else args.chunk_tokens,
        "documents": len(documents),
        "chunks": chunks,
        "ingest_s": ingest_s,
        "questions": len(questions),
        "wanted": sum(len(question.wanted) for question in questions) / len(questions),
        "figures": figures(found),
        "samples": [asdict(one) for one in found],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.recall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="JSONL: question, passages")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--url", help="a running service with room for 64 chunks; default: start one"
    )
    where.add_argument("--library", action="store_true", help="the retriever in this process")
    parser.add_argument("--api-key", help="for --url")
    parser.add_argument("--chunk-tokens", type=int, default=CHUNK_TOKENS, help="without --url")
    parser.add_argument("--out", type=Path, help="write the record as JSON, and beside it as .md")
    args = parser.parse_args()
    record = asyncio.run(measure(args))
    print(report(record))
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(
            report(record) + provenance(record), encoding="utf-8"
        )
    return 0 if hybrid_holds(record["figures"]) else 1


if __name__ == "__main__":
    sys.exit(main())
