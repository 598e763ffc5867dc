"""Counts what a prefill asks of a GPU, by method, without one.

    python -m benchmarks.launches                      the table of docs/results.md
    python -m benchmarks.launches --places pie         where in the code PIE's are asked for
    python -m benchmarks.launches --most pie=480       exit code 1 if PIE takes more operations

A request of 16 documents in the memory tier, with a system prompt and a question of 32 tokens, is
answered by one token. The model is a Llama of a tiny width: counts depend on the layers, not on the
width, unless tiles do. Then the same with layers recorded and replayed
(`kvstitch_gpu.prefill_graphs`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.launches.prefills import METHODS, Case, Counts, count, count_decode
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/speed/launches.json")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.launches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--methods", default=",".join(METHODS), help=", ".join(METHODS))
    parser.add_argument("--layers", type=int, default=Case.layers)
    parser.add_argument("--tokens", type=int, default=Case.tokens, help="of all documents")
    parser.add_argument("--chunks", type=int, default=Case.chunks)
    parser.add_argument("--codec", default=Case.codec)
    parser.add_argument("--places", default="", help="a method whose places in the code are shown")
    parser.add_argument("--most", default="", help="operations that a method may take at most")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    methods = [name for name in args.methods.split(",") if name]
    if unknown := sorted({*methods, *filter(None, [args.places])} - METHODS.keys()):
        parser.error(f"no method {unknown[0]!r} is counted; these are: {', '.join(METHODS)}")
    case = Case(args.layers, args.tokens, args.chunks, args.codec)
    counts = count(case, methods)
    replayed = count(case, methods, graphs=True)
    decode = count_decode(case.layers)
    print("\n".join(table(counts, replayed)))
    print(f"a decode step: {decode['device operations']} operations, recorded 2")
    for place, times in counts[args.places].places.items() if args.places in counts else ():
        print(f"{times:6}  {place}")
    record = {
        "environment": describe(),
        "case": asdict(case),
        "counts": {
            name: {"rows": of.rows, "kinds": of.kinds, "names": of.names}
            for name, of in counts.items()
        },
        "with_graphs": {
            name: {"kinds": of.kinds, "names": of.names} for name, of in replayed.items()
        },
        "decode_step": decode,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    over = [
        f"{name}: {found} device operations, at most {most} are allowed"
        for name, most in (pair.split("=") for pair in args.most.split(",") if pair)
        if (found := counts[name].kinds["device operations"]) > int(most)
    ]
    print("\n".join(over), end="\n" if over else "")
    return 1 if over else 0


def table(counts: dict[str, Counts], replayed: dict[str, Counts]) -> list[str]:
    """Return the lines of a table in Markdown, a line for every method."""
    kinds = [kind for kind in next(iter(counts.values())).kinds if kind != "graph"]
    heads = ["method", "rows", *kinds, "with graphs"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, of in counts.items():
        cells = [name, str(of.rows), *(f"{of.kinds[kind]:,}" for kind in kinds)]
        cells.append(f"{replayed[name].kinds['device operations']:,}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
