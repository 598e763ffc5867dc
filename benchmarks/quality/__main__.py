"""How close each fusion method stays to full prefill on real text, and what it costs.

    python -m benchmarks.quality --model FOLDER --prompts FILE.jsonl --out FOLDER

Prompts are those of `python -m benchmarks.quality.prompts` and `behind`. Records are appended to
samples-<model>-<dtype>.jsonl as they are made; a stopped run goes on with the same command, and
`python -m benchmarks.quality.table` makes the table of them. What has other parameters or another
source file is measured again. Records are used even if the engine itself has changed since: use
--fresh then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from benchmarks.quality.configurations import behind, real
from benchmarks.quality.measure import TOGETHER, Measurer, measure_all
from benchmarks.quality.prompt_file import of_file, tokenizer_of
from benchmarks.quality.records import Records
from kvstitch.service.errors import InvalidRequest, KvstitchError
from kvstitch.service.worker.api import load_model, model_fingerprint
from kvstitch_lora.load import add_lora
from kvstitch_tune.case import NEXT
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.records import describe

ADAPTER = "chunks"
"""Name of the adapter that documents are computed with."""


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL, one prompt a line")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="configurations by name, with wildcards"
    )
    parser.add_argument(
        "--adapter",
        type=Path,
        help="a LoRA adapter's folder: also with documents but the first computed with it",
    )
    parser.add_argument("--fresh", action="store_true", help="discard this model's records")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--together", type=int, default=TOGETHER, help="caches held at once: fewer, less memory"
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    args = arguments(given)
    torch.set_num_threads(args.threads)
    try:
        decoder = load_model(str(args.model), dtype=args.dtype, device=args.device)
        if args.adapter is not None:
            add_lora(decoder, ADAPTER, args.adapter)
        prompts = of_file(args.model, args.prompts)
        _check_lengths(prompts, decoder.max_context)
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    tokenizer = tokenizer_of(args.model)
    modes = dict.fromkeys(mode for prompt in prompts for mode in prompt.behind)
    configurations = [*real(), *behind(modes)]
    if args.adapter is not None:
        own = decoder.loras[ADAPTER].info.fingerprint
        configurations += [replace(c, adapter=own) for c in configurations if c.reads_cache]
    configurations = [
        c for c in configurations if any(fnmatchcase(c.name, pattern) for pattern in args.only)
    ]
    if not configurations:
        print("no configuration has such a name", file=sys.stderr)
        return 1
    model = model_fingerprint(str(args.model))
    records = Records(args.out / f"samples-{model[:12]}-{args.dtype}.jsonl")
    if args.fresh:
        records.discard()
    records.load()
    facts = {
        "model": {"folder": args.model.name, "fingerprint": model, "dtype": args.dtype},
        "threads": args.threads,
        "environment": describe(),
    }
    records.note(configurations, facts)
    longest = max(p.tokens for p in prompts)
    measurer = Measurer(
        decoder,
        tokenizer.decode,
        longest=longest,
        together=args.together,
        adapter=ADAPTER if args.adapter is not None else "",
    )
    made = measure_all(measurer, prompts, configurations, records)
    print(f"{made} new records in {records.path}")
    return 0


def _check_lengths(prompts: Sequence[Prompt], limit: int) -> None:
    """Makes sure that there are prompts and that each fits with its answer.

    Raises:
        InvalidRequest: if not.
    """
    if not prompts:
        raise InvalidRequest("there are no prompts", field="prompts")
    for prompt in prompts:
        if prompt.tokens + NEXT + 1 > limit:
            raise InvalidRequest(
                f"a prompt of {prompt.task} has {prompt.tokens} tokens; with {NEXT + 1} of answer "
                f"the model takes {limit}: leave it out",
                field="prompts",
            )


if __name__ == "__main__":
    sys.exit(main())
