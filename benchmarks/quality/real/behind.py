"""Adds to the prompts of a file which other chunks each of their chunks is precomputed behind.

    python -m benchmarks.quality.real.behind --model FOLDER --prompts nq.jsonl --split dev \\
        --modes primer-r3 neighbours-n3 --out nq_behind.jsonl

The other chunks are those of all passages of the split, cut as the prompts' are, with `--pool file`
those of all the file's prompts, with `--pool both` both. A mode is
`primer-` (their KV is that of one prefill) or `neighbours-` (they are stitched together), then

    n3   its three nearest ones by the retriever's embeddings, the nearest one last
    r3   the same three for all chunks, drawn at random
    c3   the same three for all chunks, those nearest to the centres of three clusters
    e3   three chunks of the built-in essays, which are of another kind, the same for all chunks
    g3/16  the same three for all chunks of a group, of 16 on average: its most central ones

with `,all` for the prompt's first chunk too (else that one is behind the system prompt alone, where
its KV is exact), and `,first` for the nearest one first. `python -m benchmarks.fidelity --real`
measures the modes of such a file under their names.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.fidelity.prompts import of_file, write
from benchmarks.quality.real.chunks import Ids, chunked
from benchmarks.quality.real.suites import SPLITS, Suites
from benchmarks.quality.tasks.retrieved import Embed
from retriever import LocalEmbedder
from retriever.primer_groups import central
from service.errors import KvstitchError
from tuning.prompts import Prompt

Vectors = NDArray[np.float32]
Places = NDArray[np.int64]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.real.behind",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL")
    parser.add_argument("--split", choices=SPLITS, default="dev")
    parser.add_argument("--pool", choices=("split", "file", "both"), default="split")
    parser.add_argument("--chunk-tokens", type=int, help="of the prompts")
    parser.add_argument("--modes", nargs="+", default=["primer-r3", "neighbours-n3"])
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(given)
    embedder = LocalEmbedder()
    try:
        embedder.start()
        with closing(embedder):
            suites = Suites(args.model, embedder.embed)
            prompts = of_file(args.model, args.prompts)
            pool: tuple[Ids, ...] = ()
            if args.pool != "file":
                pool = chunked(suites.passages(args.split), args.chunk_tokens)
            if args.pool != "split":
                pool = tuple(dict.fromkeys([*pool, *(d for p in prompts for d in p.documents)]))
            neighbourhood = Neighbourhood(suites, embedder.embed, pool, args.seed)
            made = [neighbourhood.add(prompt, args.modes) for prompt in prompts]
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    write(args.out, made)
    return 0


class Neighbourhood:
    """The chunks of a corpus, and which of them another chunk is precomputed behind."""

    def __init__(self, suites: Suites, embed: Embed, pool: Sequence[Ids], seed: int) -> None:
        self._suites, self._embed, self._pool, self._seed = suites, embed, pool, seed
        self._vectors = self._embedded(pool)
        self._groups: dict[tuple[int, int], Places] = {}

    def add(self, prompt: Prompt, modes: Sequence[str]) -> Prompt:
        vectors = self._embedded(prompt.documents)
        behind = {mode: self._mode(mode, prompt.documents, vectors) for mode in modes}
        return replace(prompt, behind=behind)

    def _mode(self, mode: str, documents: Sequence[Ids], vectors: Vectors) -> list[list[Ids]]:
        (_, which), flags = mode.split(",")[0].split("-"), mode.split(",")[1:]
        kind, (count, *of) = which[0], [int(number) for number in which[1:].split("/")]
        found: list[list[Ids]] = []
        for number, (ids, vector) in enumerate(zip(documents, vectors, strict=True)):
            if kind == "n":
                chosen = self._nearest(ids, vector, count)
            elif kind == "g":
                chosen = self._of_group(ids, vector, count, *of)
            else:
                chosen = [other for other in self._fixed(kind, count) if other != ids]
            exact = number == 0 and "all" not in flags
            found.append([] if exact else chosen if "first" in flags else chosen[::-1])
        return found

    def _nearest(self, ids: Ids, vector: Vectors, count: int) -> list[Ids]:
        ranked = np.argsort(-(self._vectors @ vector), kind="stable")
        others = (self._pool[place] for place in ranked if self._pool[place] != ids)
        return [next(others) for _ in range(count)]

    def _of_group(self, ids: Ids, vector: Vectors, count: int, size: int) -> list[Ids]:
        """As the service divides a collection (`retriever.primer_groups`)."""
        if (count, size) not in self._groups:
            number = max(1, round(len(self._pool) / size))
            self._groups[count, size] = central(self._vectors, number, count)
        groups = self._groups[count, size]
        nearest = np.argsort(-(self._vectors[groups].mean(axis=1) @ vector), kind="stable")
        found = [[self._pool[place] for place in groups[group]] for group in nearest]
        others = (each for each in found if ids not in each)
        return next(others, [other for other in found[0] if other != ids])

    def _fixed(self, kind: str, count: int) -> list[Ids]:
        if kind == "e":
            return self._suites.essays()[:count]
        if kind == "r":
            return random.Random(self._seed).sample(list(self._pool), count)
        places = central(self._vectors, count, 1)[:, 0]
        return [self._pool[place] for place in places]

    def _embedded(self, chunks: Sequence[Ids]) -> Vectors:
        return self._embed([self._suites.decode(ids) for ids in chunks])


if __name__ == "__main__":
    sys.exit(main())
