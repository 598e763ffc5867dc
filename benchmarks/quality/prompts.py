"""Writes prompts of real text for one model, as token ids in the format that it is served with.

    python -m benchmarks.quality.prompts --model FOLDER --suite nq --split dev --out FILE

The file is what `python -m benchmarks.quality --prompts` reads, one prompt a line. Of the suite
`docs`, whose files `python -m benchmarks.quality.fetch_docs` fetches, every prompt says where its
documents come from, and --pieces FILE is what `behind --pieces` takes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.quality.prompt_file import write
from benchmarks.quality.suites import SPLITS, SUITES, Choice, Suites
from benchmarks.quality.tasks.natural_questions import ORDERS
from kvstitch.retriever import LocalEmbedder
from kvstitch.service.errors import KvstitchError


def main(given: Sequence[str] | None = None) -> int:
    default = Choice()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--suite", choices=SUITES, default="nq")
    parser.add_argument("--split", choices=SPLITS, default=default.split)
    parser.add_argument("--samples", type=int, default=default.samples)
    parser.add_argument("--seed", type=int, default=default.seed, help="of the passages' order")
    parser.add_argument(
        "--others", type=int, default=default.others, help="passages beside those that answer"
    )
    parser.add_argument("--chunk-tokens", type=int, help="(default: a passage is a chunk)")
    parser.add_argument("--answer-prefix", default="", help="begins the answer")
    parser.add_argument(
        "--order", choices=ORDERS, default="random", help="nq: where the best passages stand"
    )
    parser.add_argument("--docs", type=Path, help="docs: the files (default: as they are fetched)")
    parser.add_argument(
        "--pieces", type=Path, help="docs: write all pieces of the collection there"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(given)
    values = {name: getattr(args, name) for name in Choice.__dataclass_fields__}
    embedder = LocalEmbedder()
    try:
        embedder.start()
        with closing(embedder):
            suites = Suites(args.model, lambda texts: embedder.embed(texts)[0])
            made = suites.draw(args.suite, Choice(**values))
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    write(args.out, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
