"""`python -m loadtest`: loads a service; writes a table, a JSON file, a plot and an HTML page."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest import command_line, local_service, machine
from loadtest.errors import LoadTestError
from loadtest.measurement.request_record import RequestRecord
from loadtest.rate_sweep import AUTO_FACTORS, Step, StepRunner, replay, sweep
from loadtest.reporting import goodput_plot, knee, markdown_report
from loadtest.reporting.html_page import page
from loadtest.reporting.run_summary import Slo, two_digits
from loadtest.sending.streaming_client import StreamingClient
from loadtest.traffic.random_model import write_model
from loadtest.traffic.routes import MethodUnderTest
from loadtest.traffic.trace_replay import Trace
from loadtest.traffic.workloads import Workload

# Requests of each method without load.
ALONE = 5
# The default limit of TTFT, as a multiple of the first method's TTFT without load.
SLO_FACTOR = 3.0


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    args = command_line.parser().parse_args(given)
    args.api_key = args.api_key or os.environ.get("KVSTITCH_API_KEY", "")
    before = machine.describe()
    try:
        with served(args) as url:
            result, raw = asyncio.run(measure(args, url))
    except (LoadTestError, ValueError, OSError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    own = {} if args.url else machine.service_environment()
    result |= {"machine": before, "service_environment": own, "notes": args.note}
    write(args.out, args.name, result, raw)
    return 0 if any(step["valid"] for step in result["steps"]) else 2


@contextmanager
def served(args: argparse.Namespace) -> Iterator[str]:
    """Yields the base URL of the service to load, after its documents are stored."""
    if args.url:
        url = str(args.url).rstrip("/")
        if args.ingest:
            count = local_service.ingest(url, command_line.corpus(args), args.api_key)
            say(f"{count} documents stored")
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="kvstitch-load-") as scratch:
        model = args.model
        if args.shape:
            model = write_model(
                Path(scratch) / str(args.shape), args.shape, command_line.DEMO_MODEL
            )
        say("starting a service ...")
        with local_service.service(Path(scratch) / "data", model) as url:
            say(f"{local_service.ingest(url, command_line.corpus(args))} documents stored")
            yield url


async def measure(
    args: argparse.Namespace, url: str
) -> tuple[dict[str, Any], Mapping[str, list[RequestRecord]]]:
    """Run all steps; returns the result as JSON-ready data, and the records of each step."""
    model = local_service.first_model(url, args.api_key)
    route, methods = command_line.route(args, model), command_line.methods(args)
    work = command_line.workload(args)
    async with StreamingClient(url, route, args.api_key) as client:
        driver = StepRunner(client, route, command_line.pattern(args, Slo()), Slo())
        unloaded = await alone(driver, work, methods)
        first = unloaded[methods[0].label]
        slo, origin = command_line.slo(args, two_digits(SLO_FACTOR * first["ttft_s"]))
        pattern = command_line.pattern(args, slo)
        driver = StepRunner(client, route, pattern, slo)
        say(f"SLO: {slo}")
        if isinstance(work, Trace):
            steps, raw = await replay(driver, work, methods, say)
        else:
            rates = args.rates or [two_digits(f / first["e2e_s"]) for f in AUTO_FACTORS]
            steps, raw = await sweep(driver, work, methods, rates, say)
        after = await alone(driver, work, methods)
    result = {
        "model": model,
        "route": route.path,
        "workload": work.describe(),
        "pattern": pattern.describe(),
        "slo": slo.describe(),
        "slo_text": str(slo),
        "slo_origin": origin,
        "attainment": args.attainment,
        "baseline": methods[0].label,
        "unloaded": unloaded,
        "unloaded_after": after,
        "knees": {} if isinstance(work, Trace) else knees(steps, methods, args.attainment),
        "steps": steps,
    }
    return result, raw


async def alone(
    driver: StepRunner, work: Workload, methods: Sequence[MethodUnderTest]
) -> dict[str, dict[str, float]]:
    """Measure each method without load; before and after the run, to see if the machine changed."""
    out = {}
    for method in methods:
        out[method.label] = found = await driver.alone(work, method, ALONE)
        say(f"{method.label} alone: TTFT {1000 * found['ttft_s']:.0f} ms")
    return out


def knees(
    steps: Sequence[Step], methods: Sequence[MethodUnderTest], attainment: float
) -> dict[str, Any]:
    """The knee of each method, and its ratio to the knee of the first method."""
    found = {
        method.label: knee.find_knee(
            [step for step in steps if step["method"] == method.label], attainment
        )
        for method in methods
    }
    base = found[methods[0].label]
    out = {}
    for label, mine in found.items():
        further = knee.ratio(mine, base)
        times, at_least = further if further is not None else (None, False)
        out[label] = {**mine.describe(), "further_right": times, "at_least": at_least}
    return out


def write(
    folder: Path, name: str, result: Mapping[str, Any], raw: Mapping[str, Sequence[RequestRecord]]
) -> None:
    """Write NAME.json, .records.json.gz, .png, .md and .html, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = goodput_plot.goodput(result)
    text = markdown_report.markdown(result, f"{name}.png")
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / f"{name}.png").write_bytes(picture)
    (folder / f"{name}.md").write_text(text)
    (folder / f"{name}.html").write_text(page(result, text, {"Goodput": picture}))
    samples = {step: [asdict(record) for record in records] for step, records in raw.items()}
    packed = gzip.compress(json.dumps(samples).encode(), mtime=0)
    (folder / f"{name}.records.json.gz").write_bytes(packed)
    print(markdown_report.markdown(result))
    print(f"written: {folder / name}.html, .json, .md, .png, .records.json.gz")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
