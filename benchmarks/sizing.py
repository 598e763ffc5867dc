"""Computes the sizes of a deployment: the tables in docs/operations.md.

    python -m benchmarks.sizing            writes them
    python -m benchmarks.sizing --check    fails if the page has other tables

Bytes of chunks are exact, from the store's layout and header. Reads of the tiers assume that the
chunk of rank i is read in proportion to 1 / i (Zipf with exponent 1), and that every tier holds the
most read chunks that are not in the tiers above, which is the best any eviction policy can do.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from kvstore import ChunkSpec, chunk_file_bytes

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"
BEGIN, END = "<!-- sizes: begin -->\n", "<!-- sizes: end -->\n"
CODECS = ("raw", "int8", "int4", "int2")
TOKENS = 512
KIB, MIB, GIB, TIB = (1024**n for n in (1, 2, 3, 4))
VECTOR_BYTES = 384 * 4  # MiniLM, float32
TEXT_BYTES = 4 * TOKENS  # English, in SQLite beside the index


@dataclass(frozen=True)
class Model:
    """A model; `prefill_s` is assumed: seconds per token of full prefill, to be measured."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    prefill_s: float

    def chunk_bytes(self, codec: str, tokens: int = TOKENS) -> int:
        """Bytes of a stored chunk, with header and checksums."""
        spec = ChunkSpec("0" * 64, codec, "bfloat16", self.layers, self.kv_heads, self.head_dim,
                         tokens)  # fmt: skip
        return chunk_file_bytes(spec)


@dataclass(frozen=True)
class Case:
    """A deployment: number of chunks, and bytes of the tiers."""

    title: str
    model: Model
    codec: str
    chunks: int
    tiers: tuple[tuple[str, int], ...]


SMALL = Model("Qwen2.5-0.5B", 24, 2, 64, 4e-6)
MIDDLE = Model("Qwen2.5-7B", 28, 4, 128, 35e-6)
LLAMA = Model("Llama-3-8B, Mistral-7B", 32, 8, 128, 37e-6)
MODELS = (SMALL, Model("Qwen2.5-3B", 36, 2, 128, 15e-6), MIDDLE, LLAMA)
CASES = (
    Case("A million chunks, one worker", MIDDLE, "int8", 1_000_000,
         (("memory", 256 * GIB), ("ssd", 14 * TIB))),
    Case("A hundred million chunks, every worker for all of them", LLAMA, "int4", 100_000_000,
         (("memory", 512 * GIB), ("ssd", 28 * TIB))),
    Case("A hundred million chunks, collections dealt out to 32 workers: one of these", LLAMA,
         "int4", 100_000_000 // 32, (("memory", 512 * GIB), ("ssd", 28 * TIB))),
)  # fmt: skip


def share_of_reads(most_read: float, chunks: int) -> float:
    """Share of all reads that go to the `most_read` chunks: H(most_read) / H(chunks)."""
    return min(1.0, _harmonic(min(most_read, chunks)) / _harmonic(chunks))


def _harmonic(n: float) -> float:
    return math.log(n) + 0.5772156649 + 1 / (2 * n) if n >= 1 else 0.0


def render() -> str:
    return "\n".join([*_per_model(), *(line for case in CASES for line in _case(case))])


def _per_model() -> list[str]:
    rows = [
        f"| {model.name} | "
        + " | ".join(
            f"{model.chunk_bytes(codec) / TOKENS / KIB:.1f} KiB, "
            f"{model.chunk_bytes(codec) / MIB:.1f} MiB"
            for codec in CODECS
        )
        + " |"
        for model in MODELS
    ]
    head = "| model, bfloat16 | " + " | ".join(f"`{codec}`" for codec in CODECS) + " |"
    return [f"Stored bytes per token, and per chunk of {TOKENS} tokens:\n", head,
            "|---" * (len(CODECS) + 1) + "|", *rows, ""]  # fmt: skip


def _case(case: Case) -> list[str]:
    chunk = case.model.chunk_bytes(case.codec)
    lines = [
        f"**{case.title}** of {TOKENS} tokens, {case.model.name}, `{case.codec}`:\n",
        "| | |",
        "|---|---|",
        f"| KV of all chunks | {_bytes(case.chunks * chunk)} ({chunk / MIB:.1f} MiB each) |",
        f"| vectors, in memory | {_bytes(case.chunks * VECTOR_BYTES)} |",
        f"| text in SQLite | about {_bytes(case.chunks * TEXT_BYTES)} |",
        f"| computing all of them once | {_hours(case)} GPU hours at "
        f"{1e6 * case.model.prefill_s:.0f} µs per token |",
    ]
    held = seen = 0.0
    for tier, room in case.tiers:
        held += room / chunk
        share = share_of_reads(held, case.chunks)
        lines.append(
            f"| {tier}, {_bytes(room)} | {min(1.0, room / chunk / case.chunks):.2%} of the chunks, "
            f"{share - seen:.0%} of the reads |"
        )
        seen = share
    return [*lines, f"| computed when asked for | {1 - seen:.0%} of the reads |", ""]


def _hours(case: Case) -> str:
    return f"{case.chunks * TOKENS * case.model.prefill_s / 3600:,.0f}"


def _bytes(count: float) -> str:
    unit, name = next(((u, n) for u, n in ((TIB, "TiB"), (GIB, "GiB")) if count >= u), (MIB, "MiB"))
    return f"{count / unit:,.1f} {name}"


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}{render()}{END}{after}"
    if arguments == ["--check"]:
        if page != wanted:
            print(f"{PAGE.name}: the sizes are not what the code says", file=sys.stderr)
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
