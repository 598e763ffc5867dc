"""Finds the layers at which SamKV should judge what a question needs (METHODS §1.7, P7, N*).

    python -m benchmarks.fidelity.stable_layers MODEL_FOLDER [--documents FILE.jsonl] [--samples 32]

For every document: the block whose decay alpha ranks best on average over layers is the one that
stays important; a layer where that block's alpha lies far below the others' sees it clearly. Layers
are ordered by how often it is a low outlier there (3 standard deviations, possible only with more
than ten blocks), then by how many deviations below the mean it lies on average. The best eighth of
the layers goes into `calibration.json` beside the weights.
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
from benchmarks.environment import describe
from benchmarks.probes import FILLER, Prober
from service.errors import InvalidRequest, KvstitchError
from service.worker.api import OUTLIER_SIGMAS, DecoderAdapter, compute_sketch, load_model

LEAST_BLOCKS = 4
"""Of a document: with fewer there is no middle block to compare."""


def deviations(alpha: Tensor) -> Tensor:
    """How many standard deviations below its layer's mean the best block's alpha lies: `[L]`.

    alpha `[L, m]`, +inf at blocks that were not scored. The best block has the lowest mean rank
    over layers.
    """
    scored = alpha.isfinite().all(0)
    alpha = alpha[:, scored].double()
    order = alpha.sort(dim=1, stable=True).indices
    ranks = order.argsort(dim=1).double()
    best = int(ranks.mean(0).argmin())
    spread = alpha.std(1, correction=0).clamp(min=1e-12)
    return (alpha.mean(1) - alpha[:, best]) / spread


def stable_layers(found: Sequence[Tensor], layers: int) -> tuple[int, ...]:
    """The best eighth (at least one), ascending, from `deviations` per document."""
    stacked = torch.stack(list(found))
    outliers = (stacked > OUTLIER_SIGMAS).double().sum(0)
    mean = stacked.mean(0)
    order = sorted(range(layers), key=lambda n: (-float(outliers[n]), -float(mean[n]), n))
    return tuple(sorted(order[: math.ceil(layers / 8)]))


@torch.inference_mode()
def decay_of(adapter: DecoderAdapter, ids: Sequence[int]) -> Tensor:
    """alpha `[L, m]` of one document prefilled by itself."""
    return compute_sketch(adapter, ids).alpha.cpu()


def texts(path: Path | None, tokens: int, samples: int, seed: int) -> Iterable[str]:
    """Documents of a JSONL file (field `text`), or filler sentences in random order."""
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
