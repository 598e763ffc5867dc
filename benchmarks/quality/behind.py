"""Adds to the prompts of a file which other chunks each of their chunks is precomputed behind.

    python -m benchmarks.quality.behind --model FOLDER --prompts nq.jsonl --split dev \\
        --modes primer-r3 neighbours-n3 --out nq_behind.jsonl

The other chunks are those of all passages of the split, cut as the prompts' are, with `--pool file`
those of all the file's prompts, with `--pool both` both, with `--pieces` those of a file that was
written with the prompts of the suite `docs`: the pieces of the whole collection. A mode is
`primer-` (their KV is that of one prefill) or `neighbours-` (they are stitched together), then

    n3   its three nearest ones by the retriever's embeddings, the nearest one last
    r3   the same three for all chunks, drawn at random
    c3   the same three for all chunks, those nearest to the centres of three clusters
    g3/16  the same three for all chunks of a group, of 16 on average: its most central ones
    t3x3   the neutral passages that come with the package, likewise
    g3/16x2  the mean of what is computed behind these three and behind the three next to them
    d2048  the pieces that precede it in its own document, of at most 2,048 tokens, chosen as the
           service does it; nothing before the first piece (needs `--pieces`)
    d2048|g3/32x3  the first of these that gives anything, which is what the service does

or several, one behind the other (`primer-g3/32+d2048`), with `,all` for the prompt's first chunk
too (else that one is behind the system prompt alone, where its KV is exact), and `,first` for the
nearest one first. `python -m benchmarks.quality` measures the modes of such a file under
their names.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.chunks import Ids, chunked
from benchmarks.quality.collection import Piece, read_pieces
from benchmarks.quality.prompt_file import of_file, write
from benchmarks.quality.suites import SPLITS, Suites
from benchmarks.quality.tasks.retrieved import Embed
from kvstitch.retriever import LocalEmbedder
from kvstitch.retriever.prefixes.prefix_choice import prefix_starts
from kvstitch.retriever.prefixes.primer_groups import central
from kvstitch.service.errors import InvalidRequest, KvstitchError
from kvstitch_tune.prompts import Prompt

Vectors = NDArray[np.float32]
Places = NDArray[np.int64]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.behind",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL")
    parser.add_argument("--split", choices=SPLITS, default="dev")
    parser.add_argument("--pool", choices=("split", "file", "both"), default="split")
    parser.add_argument("--chunk-tokens", type=int, help="of the prompts")
    parser.add_argument("--pieces", type=Path, help="JSONL, the collection's")
    parser.add_argument("--modes", nargs="+", default=["primer-r3", "neighbours-n3"])
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(given)
    embedder = LocalEmbedder()
    try:
        embedder.start()
        with closing(embedder):
            suites = Suites(args.model, lambda texts: embedder.embed(texts)[0])
            prompts = of_file(args.model, args.prompts)
            pool: tuple[Ids, ...] = ()
            pieces: list[Piece] = []
            if args.pieces is not None:
                pieces = read_pieces(args.pieces)
                pool = tuple(dict.fromkeys(piece.ids for piece in pieces))
            elif args.pool != "file":
                pool = chunked(suites.passages(args.split), args.chunk_tokens)
            if args.pool != "split":
                pool = tuple(dict.fromkeys([*pool, *(d for p in prompts for d in p.documents)]))
            neighbourhood = Neighbourhood(
                suites, lambda texts: embedder.embed(texts)[0], pool, args.seed, pieces
            )
            made = [neighbourhood.add(prompt, args.modes) for prompt in prompts]
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    write(args.out, made)
    return 0


class Neighbourhood:
    """The chunks of a corpus, and which of them another chunk is precomputed behind.

    Args:
        pool: the chunks.
        seed: of what is drawn.
        pieces: the same with their places in whole documents, for `d`.
    """

    def __init__(
        self,
        suites: Suites,
        embed: Embed,
        pool: Sequence[Ids],
        seed: int,
        pieces: Iterable[Piece] = (),
    ) -> None:
        self._suites, self._embed, self._pool, self._seed = suites, embed, pool, seed
        self._pieces = {(piece.document, piece.number): piece.ids for piece in pieces}
        self._vectors = self._embedded(pool)
        self._groups: dict[tuple[int, int], Places] = {}

    def add(self, prompt: Prompt, modes: Sequence[str]) -> Prompt:
        """The prompt with what its chunks stand behind in these modes.

        Raises:
            InvalidRequest: the places of its chunks are not known, or others stand there.
        """
        vectors = self._embedded(prompt.documents)
        behind = {mode: self._mode(mode, prompt, vectors) for mode in modes}
        return replace(prompt, behind=behind)

    def _mode(self, mode: str, prompt: Prompt, vectors: Vectors) -> list[list[list[Ids]]]:
        """The prefixes of each chunk."""
        (_, which), flags = mode.split(",")[0].split("-"), mode.split(",")[1:]
        found: list[list[list[Ids]]] = []
        for number, vector in enumerate(vectors):
            if number == 0 and "all" not in flags:
                found.append([])
                continue
            every = (
                self._prefixes(each, prompt, number, vector, flags) for each in which.split("|")
            )
            found.append(next(filter(None, every), []))
        return found

    def _prefixes(
        self, which: str, prompt: Prompt, number: int, vector: Vectors, flags: Sequence[str]
    ) -> list[list[Ids]]:
        prefixes: list[list[Ids]] = [[]]
        for part in which.split("+"):
            if part[0] == "d":
                chosen = [self._preceding(prompt, number, int(part[1:]))]
            else:
                others = self._others(part, prompt.documents[number], vector)
                chosen = others if "first" in flags else [each[::-1] for each in others]
            prefixes = [before + each for before in prefixes for each in chosen]
        if "+" in which:  # what two parts have chosen stands where the later one wants it
            prefixes = [list(dict.fromkeys(each[::-1]))[::-1] for each in prefixes]
        return [each for each in prefixes if each]

    def _others(self, part: str, ids: Ids, vector: Vectors) -> list[list[Ids]]:
        """What a part of a mode chooses from the pool, the nearest first: one prefix or several."""
        part, _, prefixes = part.partition("x")
        kind, (count, *of) = part[0], [int(number) for number in part[1:].split("/")]
        if kind == "n":
            return [self._nearest(ids, vector, count)]
        if kind == "t":
            return self._suites.neutral(count)[: int(prefixes or 1)]
        if kind == "g":
            return self._of_group(ids, vector, count, *of, prefixes=int(prefixes or 1))
        return [[other for other in self._fixed(kind, count) if other != ids]]

    def _preceding(self, prompt: Prompt, number: int, tokens: int) -> list[Ids]:
        """The earlier pieces of its document that a piece stands behind."""
        ids = prompt.documents[number]
        if not prompt.sources or self._pieces.get(prompt.sources[number]) != ids:
            raise InvalidRequest(
                "for modes with d every prompt must say where its documents come from, and the "
                "collection must hold them there: use prompts of the suite docs, and --pieces with "
                "the file that was written with them",
                field="pieces",
            )
        document, place = prompt.sources[number]
        earlier = [self._pieces[document, number] for number in range(place)]
        return earlier[prefix_starts([len(ids) for ids in earlier], tokens)[place] :]

    def _nearest(self, ids: Ids, vector: Vectors, count: int) -> list[Ids]:
        ranked = np.argsort(-(self._vectors @ vector), kind="stable")
        others = (self._pool[place] for place in ranked if self._pool[place] != ids)
        return [next(others) for _ in range(count)]

    def _of_group(
        self, ids: Ids, vector: Vectors, count: int, size: int, *, prefixes: int
    ) -> list[list[Ids]]:
        """As the service divides a collection (`kvstitch.retriever.prefixes.primer_groups`)."""
        wanted = count * prefixes
        if (wanted, size) not in self._groups:
            number = max(1, round(len(self._pool) / size))
            self._groups[wanted, size] = central(self._vectors, number, wanted)
        groups = self._groups[wanted, size]
        nearest = np.argsort(-(self._vectors[groups].mean(axis=1) @ vector), kind="stable")
        for group in nearest:
            members = [self._pool[place] for place in groups[group]]
            runs = [members[start : start + count] for start in range(0, wanted, count)]
            if without := [run for run in runs if ids not in run]:
                return without
        return [[self._pool[place] for place in groups[nearest[0]] if self._pool[place] != ids]]

    def _fixed(self, kind: str, count: int) -> list[Ids]:
        if kind == "r":
            return random.Random(self._seed).sample(list(self._pool), count)
        places = central(self._vectors, count, 1)[:, 0]
        return [self._pool[place] for place in places]

    def _embedded(self, chunks: Sequence[Ids]) -> Vectors:
        return self._embed([self._suites.decode(ids) for ids in chunks])


if __name__ == "__main__":
    sys.exit(main())
