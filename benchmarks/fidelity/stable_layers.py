"""Finds the layers in which SamKV should decide what a question needs (docs/specification.md §1.7,
P7, N*).

    python -m benchmarks.fidelity.stable_layers MODEL_FOLDER [--documents FILE.jsonl] [--samples 32]

In every document, the block whose decay alpha ranks best on average over layers is the one that
stays important. A layer recognises it well if the block's alpha is far below the others' there.
Layers are ordered by how often it is a low outlier (3 standard deviations, which takes more than
ten blocks), then by how many standard deviations below the mean it is on average. The best eighth
of the layers is written to `calibration.json` in the model folder.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.calibrate import merge
from benchmarks.probes import FILLER, Prober
from service.errors import InvalidRequest, KvstitchError
from service.tuning.measuring.environment import describe
from service.worker.api import OUTLIER_SIGMAS, DecoderAdapter, compute_sketch, load_model

LEAST_BLOCKS = 4
"""A document with fewer blocks has no middle block to compare."""


def deviations(alpha: Tensor) -> Tensor:
    """How many standard deviations the best block's alpha is below its layer's mean.

    The best block has the lowest mean rank over layers.

    Args:
        alpha: `[layers, blocks]`; +inf for blocks that were not scored.

    Returns:
        `[layers]`.
    """
    scored = alpha.isfinite().all(0)
    alpha = alpha[:, scored].double()
    order = alpha.sort(dim=1, stable=True).indices
    ranks = order.argsort(dim=1).double()
    best = int(ranks.mean(0).argmin())
    spread = alpha.std(1, correction=0).clamp(min=1e-12)
    return (alpha.mean(1) - alpha[:, best]) / spread


def stable_layers(found: Sequence[Tensor], layers: int) -> tuple[int, ...]:
    """The best eighth of the layers (at least one), ascending, from the documents' deviations."""
    stacked = torch.stack(list(found))
    outliers = (stacked > OUTLIER_SIGMAS).double().sum(0)
    mean = stacked.mean(0)
    order = sorted(range(layers), key=lambda n: (-float(outliers[n]), -float(mean[n]), n))
    return tuple(sorted(order[: math.ceil(layers / 8)]))


@torch.inference_mode()
def decay_of(adapter: DecoderAdapter, ids: Sequence[int]) -> Tensor:
    """Decay alpha `[layers, blocks]` of one document that is prefilled by itself."""
    return compute_sketch(adapter, ids).alpha.cpu()


def texts(path: Path | None, tokens: int, samples: int, seed: int) -> Iterable[str]:
    """Texts of a JSONL file (field `text`), or filler sentences in random order."""
    if path is not None:
        with path.open(encoding="utf-8") as lines:
            for line, _ in zip(lines, range(samples), strict=False):
                yield json.loads(line)["text"]
        return
    for i in range(samples):
        source = random.Random(f"{seed}/{i}")
        yield " ".join(source.choice(FILLER) for _ in range(tokens // 8))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity.stable_layers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a Hugging Face model folder")
    parser.add_argument("--documents", type=Path, help="JSONL with a field text")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1000, help="of filler documents, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args(arguments)
    try:
        adapter = load_model(str(args.model), dtype=args.dtype, device=args.device)
        tokenizer = Prober(args.model).tokenizer
        found = []
        for text in texts(args.documents, args.tokens, args.samples, args.seed):
            ids = tokenizer.encode_text(text)[: adapter.max_context]
            if len(ids) >= LEAST_BLOCKS * 64:
                found.append(deviations(decay_of(adapter, ids)))
        if not found:
            raise InvalidRequest(
                f"no document has {LEAST_BLOCKS * 64} tokens: give longer ones", field="documents"
            )
    except (KvstitchError, OSError, ValueError, KeyError) as error:
        print(error, file=sys.stderr)
        return 1
    chosen = stable_layers(found, adapter.layers)
    about = {"documents": len(found), "seed": args.seed, "environment": describe()}
    path = merge(args.model, stable_layers=list(chosen), stable_layers_from=about)
    print(f"layers {', '.join(map(str, chosen))} of {adapter.layers}, written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
