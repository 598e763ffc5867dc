"""Measures which heads of a model retrieve, for `eviction.method` headkv (docs/specification.md
§2.6):

    python -m benchmarks.calibrate MODEL_FOLDER [--probes needle|demo] [--samples 32] [--seed 0]

The scores (`tuning.head_scores`) are written to `calibration.json` in the model
folder, where other entries stay. `kvstitch tune` measures the same with fewer probes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibrate.probes import KINDS, DemoProber
from service.errors import KvstitchError
from service.worker.api import CALIBRATION_FILE, load_model
from tuning.environment import describe
from tuning.head_scores import calibrate
from tuning.model_calibration import merge


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", type=Path, help="a Hugging Face model folder")
    parser.add_argument("--probes", choices=KINDS, default="needle")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1000, help="length of needle prompts, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args(arguments)
    try:
        decoder = load_model(str(args.model), dtype=args.dtype, device=args.device)
        prober = DemoProber(args.model, tokens=args.tokens)
        found = calibrate(
            decoder,
            (prober.make(args.probes, i, args.seed) for i in range(args.samples)),
            encode=prober.tokenizer.encode_text,
            decode=lambda ids: prober.stops(prober.tokenizer.decode(ids)),
        )
    except KvstitchError as error:
        print(error.message, file=sys.stderr)
        return 1
    answered = {name: tally.answered for name, tally in found.tallies.items()}
    for name, count in answered.items():
        print(f"{name}: {count} of {found.probes} probes answered well enough")
    if set(found.head_scores) != {"R", "R2"}:
        missing = ", ".join(sorted({"R", "R2"} - set(found.head_scores)))
        print(
            f"nothing was written: no head scored for {missing}. The model does not answer these "
            "probes; try the other --probes, shorter --tokens, or another model",
            file=sys.stderr,
        )
        return 1
    about = {
        "probes": args.probes,
        "samples": args.samples,
        "tokens": args.tokens,
        "seed": args.seed,
        "answered": answered,
        "environment": describe(),
    }
    try:
        path = merge(
            args.model / CALIBRATION_FILE, head_scores=found.head_scores, head_scores_from=about
        )
        print(f"written to {path}")
    except OSError as error:
        print(f"the model's folder must be writable: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
