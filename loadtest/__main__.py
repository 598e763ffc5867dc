"""`python -m loadtest`: loads a service; writes a table, a JSON file, a plot and an HTML page."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest import command_line, local_service, machine
from loadtest.errors import LoadTestError
from loadtest.measurement.request_record import RequestRecord
from loadtest.rate_sweep import AUTO_FACTORS, StepRunner, replay, sweep, unloaded
from loadtest.reporting.knee import knees
from loadtest.reporting.result_files import write
from loadtest.reporting.run_summary import Slo, two_digits
from loadtest.sending.streaming_client import StreamingClient
from loadtest.traffic.random_model import write_model
from loadtest.traffic.trace_replay import Trace

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
        before = await unloaded([(driver, m) for m in methods], work, ALONE, say)
        first = before[methods[0].label]
        slo, origin = command_line.slo(args, two_digits(SLO_FACTOR * first["ttft_s"]))
        pattern = command_line.pattern(args, slo)
        driver = StepRunner(client, route, pattern, slo)
        say(f"SLO: {slo}")
        if isinstance(work, Trace):
            steps, raw = await replay(driver, work, methods, say)
        else:
            rates = args.rates or [two_digits(f / first["e2e_s"]) for f in AUTO_FACTORS]
            steps, raw = await sweep([(driver, m) for m in methods], work, rates, say)
        after = await unloaded([(driver, m) for m in methods], work, ALONE, say)
    labels = [method.label for method in methods]
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
        "unloaded": before,
        "unloaded_after": after,
        "knees": {} if isinstance(work, Trace) else knees(steps, labels, args.attainment),
        "steps": steps,
    }
    return result, raw


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
