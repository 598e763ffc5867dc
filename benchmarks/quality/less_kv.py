"""Less KV on a real model: codecs, eviction after fusion, and SamKV, by KL to full prefill.

    python -m benchmarks.quality.less_kv --model FOLDER --prompts FILE.jsonl --samples 60

Prompts are those of `python -m benchmarks.quality.prompts`. Chunks are precomputed behind the
system prompt, or as the prompts' first mode says (`benchmarks.quality.behind`). Writes
<name>.md and <name>.json (samples, machine, versions, commit) to --out as it goes; records are
appended to <name>-MODEL-DTYPE.jsonl there, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

import torch

from benchmarks.common.markdown import percent, table, with_interval
from benchmarks.common.provenance import provenance
from benchmarks.quality.prompt_file import of_file
from kvstitch_tune.candidates import FULL_PREFILL, Candidate
from kvstitch_tune.environment import describe
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.records import RecordFile
from kvstitch_tune.statistics import Bootstrap, Summary
from kvstitch_tune.trial import Trial, TrialRunner
from service.settings.calibration import BUILT_IN_FUSION
from service.worker.api import load_model, model_fingerprint, read_calibration
from service.worker.methods.api import ModelFacts

OUT = Path("benchmarks/results/real")
CODECS = ("int8", "int4", "int2")
EVICTIONS = (
    "snapkv", "ada_snapkv", "pyramidkv", "ada_pyramidkv", "kvec", "h2o", "streaming_llm",
)  # fmt: skip
BUDGETS = (0.5, 0.25, 0.17, 0.1)
"""Of a typical prompt's tokens; 0.17 is the A3 paper's."""
MEMORY_BYTES = 1 << 30
LEGEND = """\
KL: full prefill ‖ configuration in nats per token along full prefill's greedy answer; first: of its
first token. Same tokens: full prefill's answer tokens that are the most likely ones here too; same
answer: all of them are. Stored: the KV that was at hand, over the same chunks stored raw. Kept: the
prompt's KV entries held while the answer is made. Operations: of the prefill, over full prefill's.
In brackets 95 % bootstrap intervals over prompts.
"""


def candidates(prompt_tokens: float, facts: ModelFacts, mode: str = "system") -> list[Candidate]:
    """What is compared, for prompts of about so many tokens, with chunks in one prefix mode."""
    parameters = {name: value for name, value in BUILT_IN_FUSION.items() if name != "method"}
    fused = Candidate(str(BUILT_IN_FUSION["method"]), tuple(parameters.items()), mode)
    whole = Candidate(FULL_PREFILL, (), mode)
    pie = Candidate("pie", (), mode)
    made = [pie, *(replace(pie, codec=codec) for codec in CODECS)]
    made += [fused, *(replace(fused, codec=codec) for codec in CODECS)]
    made += [Candidate("samkv", (), mode)]
    names = [*EVICTIONS, *(["headkv"] if facts.head_scores else [])]
    for base in (whole, fused):
        made += _evicted(base, names, prompt_tokens)
    return made


def _evicted(base: Candidate, names: Sequence[str], prompt_tokens: float) -> Iterator[Candidate]:
    for share in BUDGETS:
        for name in names:
            budget = int(share * prompt_tokens)
            yield replace(base, eviction=name, eviction_parameters=(("budget", budget),))


def report(title: str, rows: Sequence[Summary]) -> str:
    """The page."""
    raw = max(row.bytes for row in rows)
    body = [
        [
            row.candidate.label,
            with_interval(row.kl, _three),
            _three(row.kl_first.mean),
            percent(row.agreement.mean),
            percent(row.same.mean),
            percent(row.bytes / raw),
            percent(row.kept),
            percent(row.operations),
        ]
        for row in rows
    ]
    head = ["configuration", "KL", "first", "same tokens", "same answer", "stored", "kept"]
    return f"# {title}\n\n{LEGEND}\n{table([*head, 'operations'], body)}"


def _three(value: float) -> str:
    return f"{value:.3f}"


def write(
    path: Path,
    facts: dict[str, object],
    prompts: Sequence[Prompt],
    compared: Sequence[Candidate],
    file: RecordFile[Trial],
) -> None:
    """The table and the samples of the prompts that everything is measured on."""
    done = [p for p in prompts if all((p.key, c.key) in file for c in compared)]
    if not done:
        return
    bootstrap = Bootstrap(len(done))
    rows = [Summary.of(c, [file[p.key, c.key] for p in done], bootstrap) for c in compared]
    title = f"Less KV: {facts['model']}, {len(done)} prompts, {facts['dtype']}"
    columns = ("kl", "kl_first", "agreement", "same", "operations", "bytes", "kept")
    results = [
        row.candidate.fields | {name: [getattr(t, name) for t in row.trials] for name in columns}
        for row in rows
    ]
    record = {**facts, "prompts": [p.key for p in done], "results": results}
    path.with_suffix(".json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    text = report(title, rows) + provenance(record)
    path.with_suffix(".md").write_text(text, encoding="utf-8")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.less_kv",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL")
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="configurations by label, with wildcards"
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="less_kv", help="of the files")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    prompts = of_file(args.model, args.prompts)[: args.samples]
    decoder = load_model(str(args.model), dtype=args.dtype)
    facts = read_calibration(
        args.model, layers=decoder.layers, heads=decoder.heads, kv_heads=decoder.kv_heads
    )
    fingerprint = model_fingerprint(str(args.model))
    mode = next(iter(prompts[0].behind), "system")
    compared = [
        candidate
        for candidate in candidates(median(p.tokens for p in prompts), facts, mode)
        if any(fnmatchcase(candidate.label, pattern) for pattern in args.only)
    ]
    file = RecordFile(args.out / f"{args.name}-{fingerprint[:12]}-{args.dtype}.jsonl", Trial)
    file.load()
    longest = max(prompt.tokens for prompt in prompts)
    runner = TrialRunner(decoder, facts, longest=longest, memory_bytes=MEMORY_BYTES)
    about: dict[str, object] = {
        "model": args.model.name,
        "fingerprint": fingerprint,
        "dtype": args.dtype,
        "threads": args.threads,
        "environment": describe(),
    }
    for number, prompt in enumerate(prompts, start=1):
        missing = [c for c in compared if (prompt.key, c.key) not in file]
        for trials in runner.measure(prompt, missing) if missing else ():
            file.add(trials)
        print(f"prompt {number} of {len(prompts)} done", flush=True)
        write(args.out / args.name, about, prompts, compared, file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
