"""What a prefill and a decode step must take at least: arithmetic, memory and copies of a GPU.

A bound by data sheet, with no launch and no wait in it: no operation is faster than its arithmetic
at the peak rate or its bytes at the memory's bandwidth, and stored KV is copied beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.launches.prefills import METHODS
from service.worker.api import make_fusion
from service.worker.methods.api import FlopCount, PromptShape

FLOPS, BANDWIDTH, COPIED = 989e12, 3.35e12, 64e9
"""Of an H100 SXM: dense bfloat16 operations/s, memory in bytes/s, PCIe 5 x16 in bytes/s."""
QUESTION, SYSTEM = 32, 16
BYTES = 2
"""Of a bfloat16."""


@dataclass
class Llama8B:
    """The sizes of Llama-3-8B."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 14336
    vocabulary: int = 128256

    @property
    def layer_bytes(self) -> int:
        """Of the weights of a layer."""
        of_attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return BYTES * (of_attention + 3 * self.hidden * self.intermediate)

    @property
    def head_bytes(self) -> int:
        return BYTES * self.hidden * self.vocabulary

    @property
    def kv_bytes(self) -> int:
        """Of a token, at all layers."""
        return BYTES * 2 * self.layers * self.kv_heads * self.head_dim


def prefill_ms(name: str, documents: int, chunks: int) -> float:
    """Return the least milliseconds of a prefill by a method.

    Args:
        documents: tokens of all documents together, whose KV is in host memory.
        chunks: how many documents.
    """
    model, asked = Llama8B(), METHODS[name]
    method = make_fusion(asked.name, asked.parameters)
    shape = PromptShape(
        tokens=SYSTEM + documents + QUESTION,
        question=QUESTION,
        layers=model.layers,
        documents=[documents // chunks] * chunks,
    )
    seconds = model.head_bytes / BANDWIDTH
    for phase in method.phases(shape):
        for _ in phase.layers:
            count = FlopCount(model)
            phase.add_layer(count)
            seconds += max(count.total / FLOPS, model.layer_bytes / BANDWIDTH)
    copied = 0.0 if name == "vanilla" else documents * model.kv_bytes / COPIED
    return 1e3 * max(seconds, copied)


def decode_ms(context: int) -> float:
    """Return the least milliseconds of a decode step of one sequence behind so many tokens."""
    model = Llama8B()
    read = model.layers * model.layer_bytes + model.head_bytes + context * model.kv_bytes
    return 1e3 * read / BANDWIDTH


def estimates(chunks: int) -> dict[str, dict[str, float]]:
    """Return the least milliseconds by what is computed, at 2,048 and 8,192 tokens."""
    lengths = 2048, 8192
    found = {name: {str(n): prefill_ms(name, n, chunks) for n in lengths} for name in METHODS}
    return found | {"decode step": {str(n): decode_ms(n) for n in lengths}}
