"""Finds the layers in which SamKV should decide what a question needs (docs/specification.md §1.7,
P7, N*).

    python -m benchmarks.fidelity.stable_layers MODEL_FOLDER [--documents FILE.jsonl] [--samples 32]

`tuning.model_calibration` says how. They are written to `calibration.json` in the
model folder; `kvstitch tune` does the same on its documents.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from service.errors import InvalidRequest, KvstitchError
from service.worker.api import CALIBRATION_FILE, load_model
from tuning.environment import describe
from tuning.head_scores import FILLER, Prober
from tuning.model_calibration import (
    LEAST_BLOCKS,
    decay_of,
    deviations,
    merge,
    stable_layers,
)


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
        decoder = load_model(str(args.model), dtype=args.dtype, device=args.device)
        tokenizer = Prober(args.model).tokenizer
        found = []
        for text in texts(args.documents, args.tokens, args.samples, args.seed):
            ids = tokenizer.encode_text(text)[: decoder.max_context]
            if len(ids) >= LEAST_BLOCKS * 64:
                found.append(deviations(decay_of(decoder, ids)))
        if not found:
            raise InvalidRequest(
                f"no document has {LEAST_BLOCKS * 64} tokens: give longer ones", field="documents"
            )
    except (KvstitchError, OSError, ValueError, KeyError) as error:
        print(error, file=sys.stderr)
        return 1
    chosen = stable_layers(found, decoder.layers)
    about = {"documents": len(found), "seed": args.seed, "environment": describe()}
    path = merge(
        args.model / CALIBRATION_FILE, stable_layers=list(chosen), stable_layers_from=about
    )
    print(f"layers {', '.join(map(str, chosen))} of {decoder.layers}, written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
