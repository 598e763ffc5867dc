"""TTFT over vLLM's by the length of the prompts, from several results.

    python -m benchmarks.peers.lengths FOLDER … [--into docs/peers.md --place lengths]

Each folder holds a peers.json of `python -m benchmarks.peers` with prompts of another length.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.markdown import into
from benchmarks.peers.results import Result
from benchmarks.peers.servers.vllm import NAME as VLLM
from benchmarks.peers.table import quartiles, ratios_of, table
from benchmarks.peers.workloads import REORDERED, SHUFFLED, WORKLOADS
from loadtest.measurement.percentiles import percentile

COMPARED = (SHUFFLED, REORDERED)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.lengths",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, help="a page with a place for the table")
    parser.add_argument("--place", default="lengths", help="the table's place on that page")
    args = parser.parse_args(given)
    text = lengths([Result.read(folder / "peers.json") for folder in args.folders])
    print(text)
    if args.into is not None:
        into(args.into, args.place, text)
    return 0


def lengths(results: Sequence[Result]) -> str:
    """A row per workload and result, the shortest prompts first.

    Raises:
        ValueError: vLLM was not measured in one of them.
    """
    if any(VLLM not in result.names for result in results):
        raise ValueError("a result without vLLM has no ratios to it")
    names = list(dict.fromkeys(name for result in results for name in result.names))
    rows = []
    for workload in COMPARED:
        for result in sorted(results, key=lambda result: tokens(result, workload)):
            if base := result.of(VLLM, workload):
                rows.append(_row(result, workload, names, len(base)))
    header = [f"TTFT over {VLLM}'s", "tokens", "prompts", f"{VLLM}, s"]
    others = [name for name in names if name != VLLM]
    return table([*header, *others], rows) + (
        "\nMedian of the ratios prompt by prompt, in brackets the quartiles; tokens: the median.\n"
    )


def tokens(result: Result, workload: str) -> float:
    """Median length of the prompts; 0: there are none."""
    found = [len(prompt.ids) for prompt in result.prompts if prompt.workload == workload]
    return percentile(found, 50) if found else 0.0


def _row(result: Result, workload: str, names: Sequence[str], prompts: int) -> list[str]:
    base = result.of(VLLM, workload)
    seconds = [sample.ttft_s for sample in base.values() if sample.ttft_s is not None]
    cells = [
        quartiles(ratios_of(result.of(name, workload), base), 1.0, "{:.2f}")
        for name in names
        if name != VLLM
    ]
    length = f"{tokens(result, workload):,.0f}"
    return [WORKLOADS[workload], length, str(prompts), quartiles(seconds, 1.0, "{:.2f}"), *cells]


if __name__ == "__main__":
    sys.exit(main())
