"""Recall over twelve languages, and of identifiers among near twins.

    python -m benchmarks.retrieval.spellings [--out FILE]

The texts are in `data/languages.jsonl`: for each language 20 on the same 20 topics, each with a
query in another spelling or form (no accents, no points, capitals, another case, a part of a
compound). All 240 are in one collection, so that the other languages' texts are in the way. A query
is right if its text is among the first three.

Identifiers are made here: 100 part numbers, error codes, dates, versions, paragraphs and addresses,
each with near twins of the same digits, in texts that are otherwise alike. Half of the queries are
the identifier alone, half a question. A query is right if the identifier's text is first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common.provenance import provenance
from benchmarks.retrieval.recall_targets import Library
from retriever import SearchMode
from tuning.environment import describe

TEXTS = Path(__file__).with_name("data") / "languages.jsonl"
MODES: tuple[SearchMode, ...] = ("sparse", "dense", "hybrid")
PLACES = 3
PER_KIND = 100 // 5
CHUNK_TOKENS = 256
SEED = 0


@dataclass(frozen=True)
class Sought:
    """A query, and the document that it should find."""

    group: str
    query: str
    wanted: str


def languages(path: Path = TEXTS) -> tuple[list[dict[str, str]], list[Sought]]:
    """Return the documents of all languages, and the queries."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    documents = [{"doc_id": row["id"], "text": row["text"]} for row in rows]
    return documents, [Sought(row["language"], row["query"], row["id"]) for row in rows]


def identifiers(seed: int = SEED) -> tuple[list[dict[str, str]], list[Sought]]:
    """Return texts that differ in an identifier, and a query for one of every four."""
    draw = random.Random(seed)
    documents: list[dict[str, str]] = []
    sought: list[Sought] = []
    taken: set[str] = set()
    for kind, make in _KINDS.items():
        for number in range(PER_KIND):
            family = _family(draw, make, taken)
            names = [f"{kind}-{number}-{place}" for place in range(len(family))]
            order = draw.sample(range(len(family)), len(family))
            for place in order:
                text = _TEXTS[kind].format(family[place])
                documents.append({"doc_id": names[place], "text": text})
            query = family[0] if number % 2 else _QUESTIONS[kind].format(family[0])
            sought.append(Sought(kind, query, names[0]))
    return documents, sought


def _family(draw: random.Random, make: Callable[..., str], taken: set[str]) -> list[str]:
    """Four identifiers of the same digits in another order, none of which was made before."""
    while True:
        digits = [str(draw.randint(1, 9)) for _ in range(4)]
        shuffled = {tuple(draw.sample(digits, 4)) for _ in range(40)}
        family = list(dict.fromkeys(make(*one) for one in sorted(shuffled)))
        draw.shuffle(family)
        if len(family) >= 4 and not taken.intersection(family[:4]):
            taken.update(family[:4])
            return family[:4]


_KINDS = {
    "part number": lambda a, b, c, d: f"PPR-{a}{b}{c}{d}",
    "error code": lambda a, b, c, d: f"E{a}{b}-{c}{d}",
    "date": lambda a, b, c, d: f"20{a}{b}-0{c}-0{d}",
    "version": lambda a, b, c, d: f"{a}.{b}{c}.{d}",
    "paragraph": lambda a, b, c, d: f"§ {a}{b} Abs. {c} Nr. {d}",
}
_TEXTS = {
    "part number": "Item {}: stainless steel coupling, packed in tens, kept in the dry store.",
    "error code": "Error {}: the controller stopped; restart it and call the workshop.",
    "date": "Entry of {}: the pump was checked, nothing to report.",
    "version": "Release {}: the importer was mended and some texts were made clearer.",
    "paragraph": "Nach {} der Satzung ist der Beitrag im Voraus zu zahlen.",
}
_QUESTIONS = {
    "part number": "How many couplings are in a pack of {}?",
    "error code": "What should I do when {} is shown?",
    "date": "What was reported about the pump on {}?",
    "version": "What was mended in release {}?",
    "paragraph": "Was regelt {} über den Beitrag?",
}


async def measure() -> dict[str, Any]:
    """Return the share of queries that are right, by group and mode, and every rank."""
    record: dict[str, Any] = {"environment": describe(), "seed": SEED}
    for name, (documents, sought), places in (
        ("languages", languages(), PLACES),
        ("identifiers", identifiers(), 1),
    ):
        with TemporaryDirectory(prefix="kvstitch-") as scratch:
            library = Library(Path(scratch), CHUNK_TOKENS)
            await library.ingest(documents)
            ranks = [
                {"mode": mode, **asdict(one), "rank": await _rank(library, one, mode)}
                for one in sought
                for mode in MODES
            ]
        record[name] = {"documents": len(documents), "places": places, "ranks": ranks}
    return record


async def _rank(library: Library, sought: Sought, mode: SearchMode) -> int | None:
    found = list(dict.fromkeys(await library.search(sought.query, 10, mode)))
    return found.index(sought.wanted) + 1 if sought.wanted in found else None


def shares(part: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return, by group and mode, the share of queries whose document is among the first places."""
    groups = dict.fromkeys(row["group"] for row in part["ranks"])
    return {
        group: {mode: _share(part["ranks"], group, mode, part["places"]) for mode in MODES}
        for group in groups
    }


def _share(rows: Sequence[Mapping[str, Any]], group: str, mode: str, places: int) -> float:
    ranks: list[int | None] = [
        row["rank"] for row in rows if row["group"] == group and row["mode"] == mode
    ]
    return sum(rank is not None and rank <= places for rank in ranks) / len(ranks)


def report(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = ["# Recall by language, and of identifiers", ""]
    for name, heading in (("languages", "recall@3"), ("identifiers", "first")):
        part = record[name]
        lines += [f"{part['documents']} texts in one collection.", ""]
        lines += [f"| {heading} | {' | '.join(MODES)} |", "|---" * (len(MODES) + 1) + "|"]
        found = shares(part)
        for group, by_mode in found.items():
            lines.append(f"| {group} | " + " | ".join(f"{by_mode[m]:.2f}" for m in MODES) + " |")
        means = (sum(row[mode] for row in found.values()) / len(found) for mode in MODES)
        lines += ["| all | " + " | ".join(f"{mean:.3f}" for mean in means) + " |", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.spellings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="write the record as JSON, and beside it as .md")
    args = parser.parse_args()
    record = asyncio.run(measure())
    print(report(record))
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
        args.out.with_suffix(".md").write_text(report(record) + provenance(record), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
