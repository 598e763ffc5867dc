"""Makes the table of a real model from records of the fidelity bench.

    python -m benchmarks.quality.real.table --records SAMPLES.jsonl --prompts PROMPTS.jsonl \\
        --model FOLDER --name nq --title "SmolLM2-135M-Instruct, Natural Questions"

Reads records and what lies beside them; no model is run, and a run that is still going on can be
looked at: the table is on the prompts that all its configurations have. --only leaves out others.
Writes <name>.md and <name>.json (samples, machine, versions, commit) to --out. --into puts a short
table between the lines `<!-- NAME -->` and `<!-- end of NAME -->` of a page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.common.provenance import provenance
from benchmarks.fidelity.prompts import of_file
from benchmarks.fidelity.report import recorded
from benchmarks.fidelity.report.records import Record, Records
from benchmarks.fidelity.results import compact
from benchmarks.quality.real.outcomes import Outcome, of_full_prefill, outcome
from benchmarks.quality.real.page import FULL, Row, brief, page
from service.errors import KvstitchError
from tuning.prompts import Prompt

OUT = Path("benchmarks/results/real")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.real.table",
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
    parser.add_argument("--into", type=Path, help="a page with a place for the table")
    args = parser.parse_args(given)
    records = Records(args.records)
    try:
        prompts = of_file(args.model, args.prompts)
        about = recorded.read(args.records)
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
    (args.out / f"{args.name}.json").write_text(compact(record), encoding="utf-8")
    if args.into is not None:
        into(args.into, args.name, brief(rows))
    print(text)
    return 0


def into(file: Path, name: str, text: str) -> None:
    """Replaces what stands in a page between the two lines that name the table.

    Raises:
        ValueError: the page has no such lines.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = file.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{file} has no lines {begin.strip()} and {end}")
    file.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")


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
