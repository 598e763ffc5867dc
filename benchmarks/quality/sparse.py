"""Compares SamKV's answers with those of other methods, and with SamKV without some of its parts.

    python -m benchmarks.quality.sparse --samples 100 --seed 1 --out benchmarks/results/quality
    python -m benchmarks.quality.sparse --model FOLDER --tasks single update --samples 8

The demo model's tasks are used as question answering over several documents: contexts of about 190
to 460 tokens, cut into documents of --document-tokens. With the paper's blocks of 64 tokens such
documents would have no middle, so blocks have 16 tokens here. Even so, the three blocks that are
always kept are more than a third of a document of 128 tokens, while passages of a thousand tokens
keep a sixth in all; and a rest of at most three blocks is kept and recomputed whole. The tables
therefore give the kept and recomputed shares with every figure. Sketches are not rounded to int8.

Writes sparse.json (raw samples, machine, versions, commit, seed) and sparse.md. Answers are
appended to sparse-samples-<model>.jsonl as they are made; a stopped run continues with the same
command. Recorded answers are used even if the code has changed since: use --fresh then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.fidelity.prompts import of_tasks, tokenizer_of
from benchmarks.fidelity.runner import complete, found, measure_all
from benchmarks.quality import tables
from benchmarks.quality.answering import Answer, Answerer
from benchmarks.quality.compared import Compared, ablation, methods
from demo.language.tasks import TASKS
from service.errors import InvalidRequest, KvstitchError
from service.gateway.api import ModelFolder, load_format
from service.prompt import PREFIX_MODES
from service.settings import demo_model
from service.worker.api import load_model, model_fingerprint, read_calibration
from tuning.case import NEXT
from tuning.prompts import Prompt
from tuning.records import RecordFile

OUT = Path("benchmarks/results/quality")
NAME = "sparse"
ABOUT = """\
Contexts cut into documents of {document} tokens, SamKV's blocks (and Multi-InfLLM's) of {block};
documents stored with prefix mode {prefix}; {samples} prompts of each task, {parts} of them for
SamKV's parts.
"""


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.sparse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="a model folder (default: the demo model)")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--samples", type=int, default=100, help="prompts a task")
    parser.add_argument(
        "--parts", type=int, help="prompts a task for the table of SamKV's parts (default: all)"
    )
    parser.add_argument("--document-tokens", type=int, default=128)
    parser.add_argument("--block", type=int, default=16, help="tokens of a block")
    parser.add_argument(
        "--prefix-mode", choices=PREFIX_MODES, help="(default: the model's prompt format's)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--fresh", action="store_true", help="discard this model's answers")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(given)
    args.parts = args.samples if args.parts is None else args.parts
    if min(args.samples, args.parts, args.document_tokens, args.block) < 1:
        parser.error("--samples, --parts, --document-tokens and --block are at least 1")
    return args


def main(given: Sequence[str] | None = None) -> int:
    args = arguments(given)
    torch.set_num_threads(args.threads)
    folder = args.model or demo_model()
    try:
        decoder = load_model(str(folder), dtype=args.dtype, device=args.device)
        prefix = args.prefix_mode or load_format(ModelFolder(folder)).prefix_mode
        model = model_fingerprint(str(folder))
        known = read_calibration(
            folder, layers=decoder.layers, heads=decoder.heads, kv_heads=decoder.kv_heads
        )
        prompts = of_tasks(
            folder, args.tasks, samples=args.samples, chunk_tokens=args.document_tokens,
            seed=args.seed,
        )  # fmt: skip
        longest = max(p.tokens for p in prompts)
        if longest + NEXT + 1 > decoder.max_context:
            raise InvalidRequest(
                f"a prompt has {longest} tokens; with {NEXT + 1} of answer the model takes "
                f"{decoder.max_context}: leave its task out",
                field="tasks",
            )
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    compared = methods(block=args.block, document_tokens=args.document_tokens, prefix_mode=prefix)
    ablated = ablation(block=args.block, prefix_mode=prefix)
    parts = [a.compared for a in ablated]
    fewer = prompts[: args.parts * len(args.tasks)]
    records = RecordFile(args.out / f"{NAME}-samples-{model[:12]}-{args.dtype}.jsonl", Answer)
    if args.fresh:
        records.discard()
    records.load()
    answerer = Answerer(decoder, known, tokenizer_of(folder).decode, longest=longest)
    made = measure_all(answerer, prompts, compared, records)
    made += measure_all(answerer, fewer, parts, records)
    measured = complete(prompts, compared, records)
    measured_parts = complete(fewer, parts, records)
    if not measured or not measured_parts:
        print("no prompt was measured", file=sys.stderr)
        return 1

    def scores(of: Compared, prompts: Sequence[Prompt]) -> tables.Scores:
        baseline = found(prompts, compared[0], records)
        tasks = [p.task for p in prompts]
        return tables.Scores.of(of, found(prompts, of, records), baseline, tasks, args.seed)

    facts: dict[str, Any] = {
        "what": f"Sparse and dense methods: {folder.name}, {len(measured)} prompts",
        "model": {"folder": folder.name, "fingerprint": model, "dtype": args.dtype},
        "threads": args.threads,
        "seed": args.seed,
        "samples": args.samples,
        "samples_of_parts": args.parts,
        "document_tokens": args.document_tokens,
        "block": args.block,
        "prefix_mode": prefix,
        "stable_layers": list(known.stable_layers),
        "records_made_now": made,
    }
    about = ABOUT.format(
        document=args.document_tokens,
        block=args.block,
        prefix=prefix,
        samples=args.samples,
        parts=args.parts,
    )
    paths = tables.write(
        args.out, NAME, facts, about, prompts=measured,
        methods=[scores(c, measured) for c in compared],
        ablated=[(a, scores(a.compared, measured_parts)) for a in ablated],
    )  # fmt: skip
    print("\n".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    sys.exit(main())
