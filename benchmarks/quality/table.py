"""Makes the table of a real model from records.

    python -m benchmarks.quality.table --records SAMPLES.jsonl --prompts PROMPTS.jsonl \\
        --model FOLDER --name nq --title "SmolLM2-135M-Instruct, Natural Questions"

Reads records and what lies beside them; no model is run, and a run that is still going on can be
looked at: the table is on the prompts that all its configurations have. --only leaves out others.
Writes <name>.md and <name>.json (samples, machine, versions, commit) to --out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.common.provenance import provenance
from benchmarks.quality.outcomes import Outcome, of_full_prefill, outcome
from benchmarks.quality.page import FULL, Row, page
from benchmarks.quality.prompt_file import of_file
from benchmarks.quality.records import Record, Records
from kvstitch.service.errors import KvstitchError
from kvstitch_tune.prompts import Prompt

OUT = Path("benchmarks/results/real")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="for its tokenizer")
    parser.add_argument("--only", nargs="+", default=["*"], help="configurations, with wildcards")
    parser.add_argument("--least", type=int, default=1, help="prompts a configuration must have")
    parser.add_argument("--base", help="the configuration that all are compared with")
    parser.add_argument("--name", default="table", help="of the files")
    parser.add_argument("--title", default="Answers of a real model")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    records = Records(args.records)
    try:
        prompts = of_file(args.model, args.prompts)
        about = records.about()
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    records.load()
    chosen = {
        key: about[key]["name"]
        for key in about
        if any(fnmatchcase(about[key]["name"], pattern) for pattern in args.only)
        and sum((p.key, key) in records for p in prompts) >= args.least
    }
    measured = [p for p in prompts if chosen and all((p.key, key) in records for key in chosen)]
    if not measured:
        print("no prompt has records of all these configurations", file=sys.stderr)
        return 1
    rows = _rows(measured, chosen, records)
    if args.base is not None and args.base not in [row.name for row in rows]:
        print(f"--base is one of {', '.join(row.name for row in rows)}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    record = _record(args.title, measured, rows, {k: about[k] for k in chosen})
    text = page(args.title, measured, rows, base=args.base) + provenance(record)
    (args.out / f"{args.name}.md").write_text(text, encoding="utf-8")
    (args.out / f"{args.name}.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(text)
    return 0


def _rows(prompts: Sequence[Prompt], chosen: Mapping[str, str], records: Records) -> list[Row]:
    def of(prompt: Prompt, key: str) -> Record:
        return records[prompt.key, key]

    first = next(iter(chosen))
    full = [of_full_prefill(of(prompt, first), prompt) for prompt in prompts]
    others = [
        Row(name, tuple(outcome(of(prompt, key), prompt) for prompt in prompts))
        for key, name in chosen.items()
        if not name.startswith(FULL)
    ]
    return [Row(FULL, tuple(full)), *others]


def _record(
    title: str, prompts: Sequence[Prompt], rows: Sequence[Row], about: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "what": title,
        "configurations": list(about.values()),
        "prompts": [{"key": p.key, "task": p.task, "tokens": p.tokens} for p in prompts],
        "results": [{"name": row.name, "samples": _columns(row.outcomes)} for row in rows],
    }


def _columns(outcomes: Sequence[Outcome]) -> dict[str, list[float | None]]:
    each = [asdict(one) for one in outcomes]
    return {name: [_short(one[name]) for one in each] for name in each[0]}


def _short(value: float | None) -> float | None:
    """Five significant digits, as in the records."""
    return None if value is None else float(f"{value:.5g}")


if __name__ == "__main__":
    sys.exit(main())
