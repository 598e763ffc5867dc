"""What precomputing chunks behind other chunks costs: time, bytes, and what a change makes anew.

    python -m benchmarks.costs.precomputed_behind --model FOLDER

Natural Questions' passages (test part) are one collection. Time: all chunks of some groups are
computed in every prefix mode, in turns, round by round; tokens per second of the processor (so that
what else the machine does counts little), and relative to mode system as it was before prefixes
were kept (S computed with every chunk). Bytes: of these chunks' KV in the codec raw; in primer and
neighbours of both copies, and of the primers. Change: a tenth of the documents
gets another text; counted are the unchanged chunks that have to be computed again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality.tasks import natural_questions
from kvstore import EncodedChunk
from retriever import Chunk, Document, LocalEmbedder, PrefixKind, PrefixRule, Retriever, Scope
from service.gateway.api import PromptBuilder
from service.settings import Settings
from service.worker.api import (
    Address,
    Addressing,
    ChunkPrefill,
    DecoderModel,
    load_model,
    model_fingerprint,
)
from tuning.environment import describe
from tuning.single_prompts import compute_chunk

OUT = Path("benchmarks/results/real")
KINDS: tuple[PrefixKind, PrefixKind] = ("primer", "neighbours")
MODES = ("system", *KINDS)
COUNT = 3
Prefixes = list[list[Chunk]]
"""What a chunk is computed behind."""
CHANGED = 0.1


class Store:
    """Chunks in memory, read at once."""

    def __init__(self) -> None:
        self.held: dict[str, EncodedChunk] = {}

    def read(self, address: Address) -> Future[EncodedChunk | None]:
        found: Future[EncodedChunk | None] = Future()
        found.set_result(self.held.get(address.key))
        return found


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.precomputed_behind",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=96, help="chunks that are timed")
    parser.add_argument("--groups", type=int, default=3, help="whose chunks are timed")
    parser.add_argument("--passages", type=int, help="of the collection; default: all")
    parser.add_argument("--primers", type=int, default=Settings().primers, help="of a chunk")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--name", default="precomputed_behind", help="of the result")
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    decoder = load_model(str(args.model), dtype=args.dtype, device="cpu")
    prompts = PromptBuilder(args.model, Settings.model_validate({}))
    embedder = LocalEmbedder()
    with tempfile.TemporaryDirectory() as folder:
        retriever = Retriever.in_folder(Path(folder), embedder, prompts.chunking())
        retriever.start()
        with closing(retriever):
            retriever.ingest(documents("test")[: args.passages])
            prefixes = {kind: choose(retriever, kind, args.primers) for kind in KINDS}
            chunks = of_groups(retriever, prefixes["primer"], args.groups, args.most)
            timing = Timing(decoder, prompts, chunks, prefixes)
            seconds = timing.rounds(args.modes, args.rounds)
            churn = changed(retriever, prefixes, args.seed)
    result: dict[str, Any] = {
        "model": {"folder": args.model.name, "fingerprint": model_fingerprint(str(args.model))},
        "environment": describe(),
        "threads": args.threads,
        "seed": args.seed,
        "chunks": {
            "collection": len(prefixes["primer"]),
            "timed": len(chunks),
            "tokens": timing.tokens,
            "primers": len(
                {
                    tuple(other.chunk_id for other in primer)
                    for chunk in chunks
                    for primer in prefixes["primer"][chunk.chunk_id]
                }
            ),
            "primers_of_a_chunk": args.primers,
        },
        "speed": {
            mode: [round(b / t, 3) for b, t in zip(seconds["before"], seconds[mode], strict=True)]
            for mode in args.modes
        },
        "tokens_per_processor_second": {
            mode: [round(timing.tokens / each, 1) for each in taken]
            for mode, taken in seconds.items()
        },
        "bytes": {mode: timing.bytes[mode] for mode in args.modes},
        "computed_again": churn,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for mode, speeds in result["speed"].items():
        print(f"{mode:12} {statistics.median(speeds):.2f} of before, rounds {speeds}")
    print({kind: f"{share:.0%} of the unchanged chunks" for kind, share in churn.items()})
    print(path)
    return 0


def documents(split: str) -> list[Document]:
    passages = dict.fromkeys(asked.passage for asked in natural_questions.load(split))
    return [Document(str(n), p.text, p.title) for n, p in enumerate(passages)]


def choose(retriever: Retriever, kind: PrefixKind, primers: int) -> dict[int, Prefixes]:
    """The prefixes of every chunk."""
    return {
        chunk.chunk_id: retriever.prefix_chunks.choose(
            chunk, PrefixRule(kind, COUNT, primers), scope=Scope(), max_tokens=4096
        )
        for chunk in every_chunk(retriever)
    }


def every_chunk(retriever: Retriever) -> list[Chunk]:
    page = retriever.catalog.page(100_000, None)
    return [
        chunk
        for document in page.documents
        for chunk in retriever.catalog.chunks_of(document.doc_id)
    ]


def of_groups(
    retriever: Retriever, primers: dict[int, Prefixes], count: int, most: int
) -> list[Chunk]:
    """The chunks of the largest groups, in the order in which they were ingested."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for chunk_id, prefixes in primers.items():
        of_group = tuple(other.chunk_id for primer in prefixes for other in primer)
        groups.setdefault(of_group, []).append(chunk_id)
    largest = sorted(groups.values(), key=len, reverse=True)[:count]
    chosen = sorted(chunk_id for group in largest for chunk_id in group)[:most]
    return retriever.catalog.chunks(chosen)


class Timing:
    """Computes the same chunks in several prefix modes.

    Args:
        decoder: The model.
        prompts: Writes chunks as the service does.
        chunks: That are computed.
        prefixes: Of each chunk, by kind.

    Attributes:
        tokens: Of the chunks.
        bytes: Stored, by mode.
    """

    def __init__(
        self,
        decoder: DecoderModel,
        prompts: PromptBuilder,
        chunks: Sequence[Chunk],
        prefixes: dict[PrefixKind, dict[int, Prefixes]],
    ) -> None:
        self._decoder = decoder
        self._prompts = prompts
        self._chunks = chunks
        self._prefixes = {str(kind): chosen for kind, chosen in prefixes.items()}
        self._addressing = Addressing(decoder, fingerprint="companions", codec="raw")
        self.tokens = sum(len(prompts.segment(chunk)) for chunk in chunks)
        self.bytes: dict[str, int] = {}

    def rounds(self, modes: Sequence[str], count: int) -> dict[str, list[float]]:
        """Return processor seconds of every mode and of `before`, by round."""
        taken: dict[str, list[float]] = {name: [] for name in ("before", *modes)}
        with torch.inference_mode():
            for number in range(count):
                for name, seconds in taken.items():
                    seconds.append(self._run(name))
                print(f"round {number + 1} of {count}", file=sys.stderr)
        return taken

    def _run(self, name: str) -> float:
        mode = "system" if name == "before" else name
        store = Store()
        alone, prefill = ChunkPrefill(self._decoder), self._prefill(store)
        copies = 0
        started = time.process_time()
        for chunk in self._chunks if mode == "neighbours" else ():  # alone first, and counted
            of = self._address(chunk, "system")
            store.held[of.key] = compute_chunk(alone, of)
        for chunk in self._chunks:
            made = self._prefill(store) if name == "before" else prefill
            copies += compute_chunk(made, self._address(chunk, mode)).nbytes
        seconds = time.process_time() - started
        # Every chunk of a mode with prefixes is stored alone, too. S is stored once for all.
        self.bytes[name] = copies if mode == "system" else 2 * copies
        if mode == "primer":
            system = self._addressing.system(self._prompts.system, "").part_key
            held = (chunk.nbytes for key, chunk in store.held.items() if key != system)
            self.bytes[name] += sum(held)
        return seconds

    def _address(self, chunk: Chunk, mode: str) -> Address:
        behind = [] if mode == "system" else self._prefixes[mode][chunk.chunk_id]
        ids = [[self._prompts.segment(other) for other in prefix] for prefix in behind]
        of, system = self._prompts.segment(chunk), self._prompts.system
        return self._addressing.document(of, mode, system, "", ids)

    def _prefill(self, store: Store) -> ChunkPrefill:
        prefill = ChunkPrefill(self._decoder, store.read)
        prefill.write = lambda part, computed: store.held.update({part.key: computed.chunk})
        return prefill


def changed(
    retriever: Retriever, prefixes: dict[PrefixKind, dict[int, Prefixes]], seed: int
) -> dict[str, float]:
    """Share of the unchanged chunks that stand behind a changed one, by kind."""
    names = sorted({chunk.doc_id for chunk in every_chunk(retriever)})
    gone = set(random.Random(seed).sample(names, round(CHANGED * len(names))))
    owner = {chunk.chunk_id: chunk.doc_id for chunk in every_chunk(retriever)}
    kept = [chunk_id for chunk_id, doc_id in owner.items() if doc_id not in gone]
    return {
        kind: round(
            sum(
                any(other.doc_id in gone for prefix in chosen[chunk_id] for other in prefix)
                for chunk_id in kept
            )
            / len(kept),
            3,
        )
        for kind, chosen in prefixes.items()
    }


if __name__ == "__main__":
    sys.exit(main())
