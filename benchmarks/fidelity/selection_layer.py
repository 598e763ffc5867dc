"""Finds the layer at which A3 ranks best on a model (`selection_layer`, docs/specification.md
§1.5).

    python -m benchmarks.fidelity.selection_layer MODEL_FOLDER [--prompts FILE.jsonl] [--ratio 0.15]

Every layer up to `--deepest` is tried on the same prompts and rated by the geometric mean of the
first token's KL to full prefill. `--deepest` is a third of the model by default, because a deeper
layer means more layers that are computed for every token. Prints a table, and notes the best layer
in `calibration.json` for information only: a request names the layer itself (the paper's is 1).
Prompts are those of `python -m benchmarks.fidelity`; by default the demo's tasks with training
names, so that nothing is tuned on reported prompts.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.measure import Measurer
from benchmarks.fidelity.prompts import of_file, of_tasks, tokenizer_of
from benchmarks.fidelity.report.records import Records
from benchmarks.fidelity.runner import complete, found, measure_all
from demo.language.tasks import TASKS
from service.errors import InvalidRequest, KvstitchError
from service.worker.api import A3, CALIBRATION_FILE, DecoderModel, load_model
from tuning.environment import describe
from tuning.model_calibration import merge
from tuning.prompts import Prompt

SMALLEST = 1e-7
"""A smaller KL is rounding error, and its logarithm would be noise."""


def divergence_by_layer(
    decoder: DecoderModel,
    folder: Path,
    prompts: Sequence[Prompt],
    *,
    ratio: float,
    deepest: int,
    prefix_mode: str,
) -> dict[int, float]:
    """Geometric mean of the first token's KL, for each selection layer 1..deepest."""
    longest = max(prompt.tokens for prompt in prompts)
    measurer = Measurer(decoder, tokenizer_of(folder).decode, longest=longest)
    layers = {
        layer: Configuration("a3", A3(ratio, layer), f"r={ratio:g}", f"layer {layer}", prefix_mode)
        for layer in range(1, deepest + 1)
    }
    with tempfile.TemporaryDirectory() as scratch:
        records = Records(Path(scratch) / "records.jsonl")
        measure_all(measurer, prompts, list(layers.values()), records)
        measured = complete(prompts, list(layers.values()), records)
        return {
            layer: math.exp(
                fmean(
                    math.log(max(r.kl_first, SMALLEST))
                    for r in found(measured, configuration, records)
                )
            )
            for layer, configuration in layers.items()
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity.selection_layer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a Hugging Face model folder")
    parser.add_argument("--prompts", type=Path, help="JSONL file instead of the demo's tasks")
    parser.add_argument("--samples", type=int, default=8, help="of each of the demo's tasks")
    parser.add_argument("--ratio", type=float, default=0.15)
    parser.add_argument("--deepest", type=int, help="last layer to try")
    parser.add_argument("--prefix-mode", default="system", choices=("none", "bos", "system"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args(arguments)
    try:
        decoder = load_model(str(args.model), dtype=args.dtype, device="auto")
        if args.prompts is not None:
            prompts = of_file(args.model, args.prompts)
        else:
            prompts = of_tasks(
                args.model, list(TASKS), chunk_tokens=48, samples=args.samples, seed=args.seed,
                held_out=False,
            )  # fmt: skip
        deepest = args.deepest or max(1, decoder.layers // 3)
        if not prompts or deepest >= decoder.layers:
            raise InvalidRequest(
                f"there must be prompts, and --deepest must be below {decoder.layers}",
                field="deepest",
            )
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    with torch.inference_mode():
        kl = divergence_by_layer(
            decoder, args.model, prompts, ratio=args.ratio, deepest=deepest,
            prefix_mode=args.prefix_mode,
        )  # fmt: skip
    for layer, value in kl.items():
        print(f"layer {layer:2d}   KL {value:.4g}")
    best = min(kl, key=lambda layer: (kl[layer], layer))
    about = {"kl": kl, "prompts": len(prompts), "ratio": args.ratio, "environment": describe()}
    path = merge(args.model / CALIBRATION_FILE, selection_layer=best, selection_layer_from=about)
    print(f"best: {best}, noted in {path}")
    return 0


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    sys.exit(main())
