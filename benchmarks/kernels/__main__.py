"""What each CPU kernel is worth, in two tables.

    python -m benchmarks.kernels --model FOLDER

The first has every kernel beside what libraries do for the same job. The second has TTFT and TPOT
without each kernel. All ways of one job take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.common.markdown import into
from benchmarks.common.provenance import provenance
from benchmarks.common.shapes import random_qwen2
from benchmarks.kernels.end_to_end import without_each
from benchmarks.kernels.libraries import OURS, beside_libraries
from benchmarks.kernels.without import EVERY
from benchmarks.speed.paired import Paired
from service.worker.api import DecoderModel, decoder_for, load_model
from tuning.environment import describe

OUT = Path("benchmarks/results/kernels")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="a Hugging Face model folder, or a shape: qwen2.5-0.5b")
    parser.add_argument("--tokens", type=int, default=1024, help="of a prompt's documents")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="torch.compile, flex_attention too")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--into", type=Path, help="a page with a place for the tables")
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    decoder = _decoder(args.model)
    with torch.inference_mode():
        alone = beside_libraries(decoder, args.tokens, args.repetitions, compiled=args.compile)
    whole = without_each(decoder, args.tokens, args.repetitions, args.seed)
    page = f"{table(alone, OURS)}\n\n{table(whole, EVERY)}"
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"{Path(args.model).name.partition('-')[0]}_{args.threads}"
    result = {
        "environment": describe(),
        "model": Path(args.model).name,
        "tokens": args.tokens,
        "threads": args.threads,
        "seed": args.seed,
        "seconds": {job: paired.raw() for job, paired in (alone | whole).items()},
    }
    (args.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    whole_page = page + "\n" + provenance(result)
    (args.out / f"{name}.md").write_text(whole_page, encoding="utf-8")
    if args.into is not None:
        into(args.into, "kernels", page)
    print(whole_page)
    return 0


def _decoder(model: str) -> DecoderModel:
    if Path(model).is_dir():
        return load_model(model, dtype="bfloat16", device="cpu")
    return decoder_for(random_qwen2(model))


def table(measured: Mapping[str, Paired], base: str) -> str:
    """Times of the ways over that of `base`: medians of the repetitions' ratios, and quartiles."""
    columns = list(dict.fromkeys(way for paired in measured.values() for way in paired.taken))
    lines = [
        f"| | {base}, ms | " + " | ".join(columns[1:]) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for job, paired in measured.items():
        cells = [f"{1e3 * paired.taken[base].median:.3g}"]
        cells += [_cell(paired, way, base) if way in paired.taken else "" for way in columns[1:]]
        lines.append(f"| {job} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(paired: Paired, way: str, base: str) -> str:
    ratios = paired.ratios(way, base)
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
