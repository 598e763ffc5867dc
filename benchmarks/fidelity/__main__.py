"""How close each fusion method stays to full prefill, and what it costs.

    python -m benchmarks.fidelity --samples 40 --seed 1 --out benchmarks/results/fidelity
    python -m benchmarks.fidelity --ablation --samples 40 --seed 1
    python -m benchmarks.fidelity --model FOLDER --prompts FILE.jsonl

Writes <name>.json (raw samples, machine, versions, commit), <name>.md and pictures. Records are
appended to samples-<model>.jsonl as they are made; a stopped run continues with the same command.
What has other parameters or another source file is measured again. Records are used even if the
engine itself has changed since: use --fresh then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from benchmarks.fidelity import results
from benchmarks.fidelity.compared.configurations import standard
from benchmarks.fidelity.compared.parts import base, parts
from benchmarks.fidelity.compared.real import behind, next_turns, real
from benchmarks.fidelity.measure import TOGETHER, Measurer
from benchmarks.fidelity.prompts import of_file, of_tasks, tokenizer_of
from benchmarks.fidelity.report import metrics, recorded
from benchmarks.fidelity.report.records import Records
from benchmarks.fidelity.report.summary import Summary
from benchmarks.fidelity.runner import complete, found, measure_all
from demo.language.tasks import TASKS
from service.errors import InvalidRequest, KvstitchError
from service.prompt import PromptFormat
from service.settings import demo_model
from service.worker.api import QuestionScout, load_model, model_fingerprint
from tuning.case import NEXT
from tuning.environment import describe
from tuning.prompts import Prompt
from tuning.statistics import Bootstrap

OUT = Path("benchmarks/results/fidelity")
REPEAT = "\n\nRepeat the previous context:"
"""QCFuse's instruction: what is important in a document is what is needed to repeat it."""


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="a model folder (default: the demo model)")
    parser.add_argument("--prompts", type=Path, help="JSONL file instead of the demo's tasks")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--samples", type=int, default=40, help="prompts a task")
    parser.add_argument("--chunk-tokens", type=int, default=48, help="of the demo's tasks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--real", action="store_true", help="the configurations for real models")
    parser.add_argument("--ablation", action="store_true", help="the parts of question_scout")
    default = QuestionScout()
    parser.add_argument("--ratio", type=float, default=default.ratio, help="of the ablation")
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="configurations by name, with wildcards"
    )
    parser.add_argument("--name", help="of the result files (default: fidelity or ablation)")
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
    folder = args.model or demo_model()
    try:
        decoder = load_model(str(folder), dtype=args.dtype, device=args.device)
        prompts = _prompts(args, folder)
        _check_lengths(prompts, decoder.max_context)
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    model = model_fingerprint(str(folder))
    records = Records(args.out / f"samples-{model[:12]}-{args.dtype}.jsonl")
    if args.fresh:
        records.discard()
    records.load()
    longest = max(p.tokens for p in prompts)
    decode = tokenizer_of(folder).decode
    measurer = Measurer(decoder, decode, longest=longest, together=args.together)
    facts: dict[str, Any] = {
        "model": {"folder": folder.name, "fingerprint": model, "dtype": args.dtype},
        "threads": args.threads,
        "seed": args.seed,
        "chunk_tokens": None if args.prompts else args.chunk_tokens,
    }
    modes = dict.fromkeys(mode for prompt in prompts for mode in prompt.behind)
    configurations = standard(decoder.layers)
    if args.real:
        repeat = tokenizer_of(folder).encode_text(REPEAT)
        configurations = [*real(repeat), *behind(modes, repeat)]
        if all(prompt.task.startswith("turns") for prompt in prompts):
            fmt = PromptFormat.load(Path(folder))
            begins = tokenizer_of(folder).encode_text(fmt.answer_prefix if fmt else "")
            configurations += next_turns(["system", *modes], len(begins))
    what, rival = "Fusion methods", None
    if args.ablation:
        modes = modes or {"system": None}
        what, rival = "Parts of question_scout", base(next(iter(modes)), args.ratio)
        configurations = parts(modes, args.ratio)
    configurations = [
        c for c in configurations if any(fnmatchcase(c.name, pattern) for pattern in args.only)
    ]
    recorded.note(records.path, configurations, {**facts, "environment": describe()})
    facts["records_made_now"] = measure_all(measurer, prompts, configurations, records)
    measured = complete(prompts, configurations, records)
    if not measured or not configurations:
        print("no prompt was measured, or no configuration has such a name", file=sys.stderr)
        return 1
    bootstrap = Bootstrap(len(measured), seed=args.seed)
    summaries = [Summary.of(c, found(measured, c, records), bootstrap) for c in configurations]
    title = f"{what} against full prefill: {folder.name}, {len(measured)} prompts"
    paths = results.write(
        args.out,
        args.name or ("ablation" if args.ablation else "fidelity"),
        {"what": title, **facts},
        measured,
        summaries,
        bootstrap,
        depths=metrics.depths(decoder.layers),
        base=next((s for s in summaries if s.name == rival), None),
    )
    print("\n".join(map(str, paths)))
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
                f"the model takes {limit}: leave it out, or use --tasks",
                field="prompts",
            )


def _prompts(args: argparse.Namespace, folder: Path) -> list[Prompt]:
    if args.prompts is not None:
        return of_file(folder, args.prompts)
    return of_tasks(
        folder, args.tasks, chunk_tokens=args.chunk_tokens, samples=args.samples, seed=args.seed
    )


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    sys.exit(main())
