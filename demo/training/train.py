"""Trains a demo model: `python -m demo.training.train --size small|large`.

A run continues from its checkpoint. If its length is given in steps, the result is the same as that
of a run that was never stopped. `demo/training/train_h200.sh` trains the large size in slices.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch

from demo.training.decoder import Decoder
from demo.training.feed import Feed
from demo.training.load import load_plain
from demo.training.plan import SIZES, Plan
from demo.training.trainer import Trainer, renew_rows

UNFINISHED = 3
"""Exit status of a slice after which the run is not finished."""
SHIPPED = Path(__file__).parents[2] / "service" / "demo_model"
TRAINING = Path(__file__).parents[1] / ".training"


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    torch.set_num_threads(args.threads)
    plan = _plan(args)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    checkpoint = args.checkpoint or TRAINING / args.size
    start = SHIPPED if args.start is None and args.size == "small" else args.start
    model = Decoder(plan.model, plan.seed) if start is None else load_plain(start)
    if args.renew_from is not None:
        renew_rows(model, args.renew_from, plan.seed)
    trainer = Trainer(plan, model.to(device), autocast=args.bf16 or device.type == "cuda")
    trainer.load(checkpoint)
    args.log.parent.mkdir(parents=True, exist_ok=True)
    with Feed(plan, args.workers) as feed:
        finished = trainer.run(feed, args.log, checkpoint, seconds=60 * args.slice_minutes)
    trainer.export(args.out)
    print(f"step {trainer.step}, {trainer.tokens} tokens, {trainer.progress:.1%} of the run")
    return 0 if finished else UNFINISHED


def _plan(args: argparse.Namespace) -> Plan:
    """The plan of the size, with the changes of the command line."""
    plan = SIZES[args.size]
    given = {
        name: getattr(args, name)
        for name in ("steps", "minutes", "peak", "seed", "batch_tokens", "evaluate_every")
        if getattr(args, name) is not None
    }
    if args.longest is not None:
        lengths = tuple((start, min(args.longest, tokens)) for start, tokens in plan.lengths)
        given["lengths"] = lengths
    return dataclasses.replace(plan, **given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--size", choices=SIZES, default="small")
    add(
        "--start",
        type=Path,
        help="exported folder; small: service/demo_model, large: fresh weights",
    )
    add("--renew-from", type=int, help="first row without a trained word")
    add("--steps", type=int, help="length of the run in steps")
    add("--minutes", type=float, help="length of the run where no steps are given")
    add("--slice-minutes", type=float, default=float("inf"), help="stop after, to be resumed")
    add("--batch-tokens", type=int)
    add("--evaluate-every", type=int, help="steps; 0 for never")
    add("--longest", type=int, help="cap on the tokens of a context")
    add("--peak", type=float)
    add("--seed", type=int)
    add("--threads", type=int, default=1)
    add("--workers", type=int, default=0, help="processes that draw data ahead")
    add("--device", help="cuda where there is one, else cpu")
    add("--bf16", action="store_true", help="matrix products in bf16 on a CPU as well")
    add("--checkpoint", type=Path, help="folder; demo/.training/SIZE")
    add("--log", type=Path, default=TRAINING / "log.jsonl")
    add("--out", type=Path, default=TRAINING / "model")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
