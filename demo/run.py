"""`make demo`: serve, ingest the corpus, ask twenty questions per method, compare, stop."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.client import Client, ServiceError, request_body
from demo.corpus_files import read_documents, read_questions
from demo.make_corpus import Question
from demo.process import free_port, service
from demo.report import BASELINE, Outcome, print_summary, print_table, problems

RATIOS: dict[str, float | None] = {BASELINE: None, "pie": None, "a3": 0.15}
"""Methods to ask, and the recompute ratio of each; only A3 has one."""
METHODS = tuple(RATIOS)
COMPARED = "a3"
NUM_QUESTIONS = 20
SEED = 7


def ingest(console: Console, client: Client) -> None:
    documents = read_documents()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(f"precomputing {len(documents)} documents", total=None)
        for done, total in client.progress(client.precompute(documents)):
            bar.update(task, completed=done, total=total)


def draw_questions(count: int) -> list[Question]:
    """Draws the warm-up question and then `count` others, with a fixed seed."""
    return random.Random(SEED).sample(read_questions(), count + 1)


def ask_all(console: Console, client: Client, count: int) -> list[Outcome]:
    """Asks every question under every method.

    The order of methods rotates from question to question, so that none always comes first.
    """
    warm_up, *questions = draw_questions(count)
    for method in METHODS:
        client.ask(warm_up.question, method, RATIOS[method])
    outcomes = []
    with Progress(TextColumn("asking"), BarColumn(), MofNCompleteColumn(), console=console) as bar:
        for index, question in enumerate(bar.track(questions)):
            turned = METHODS[index % len(METHODS) :] + METHODS[: index % len(METHODS)]
            answers = {m: client.ask(question.question, m, RATIOS[m]) for m in turned}
            outcomes.append(Outcome(question, answers))
    return outcomes


def time_a_real_shape(console: Console) -> None:
    """Runs `benchmarks.speed` for TTFT at the sizes of a 0.5B model."""
    console.rule("time to first token at the shape of a 0.5B model")
    with tempfile.TemporaryDirectory(prefix="kvstitch-speed-") as out:
        command = [sys.executable, "-m", "benchmarks.speed", "--only", "ttft", "--threads", "1"]
        command += ["--repetitions", "2", "--out", out]
        result = subprocess.run(command, check=False)
    if result.returncode:
        console.print(f"[yellow]benchmarks.speed exited with {result.returncode}[/]")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where the service keeps its store")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--questions", type=int, default=NUM_QUESTIONS)
    parser.add_argument("--skip-shape", action="store_true", help="leave the 0.5B timing out")
    parser.add_argument("--keep-running", action="store_true", help="leave the service up")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 170)
    with tempfile.TemporaryDirectory(prefix="kvstitch-demo-") as scratch:
        data_dir = args.data_dir or Path(scratch) / "data"
        data_dir.mkdir(parents=True, exist_ok=True)
        port = args.port or free_port()
        console.print(f"starting the service on port {port} ...")
        try:
            with (
                service(data_dir, port, data_dir / "service.log") as process,
                Client(f"http://127.0.0.1:{port}") as client,
            ):
                ingest(console, client)
                outcomes = ask_all(console, client, args.questions)
                print_table(console, outcomes, METHODS)
                print_summary(console, outcomes, METHODS)
                if not args.skip_shape:
                    time_a_real_shape(console)
                found = problems(outcomes, COMPARED)
                for problem in found:
                    console.print(f"[red]{problem}[/]")
                if args.keep_running:
                    example = outcomes[0].question.question
                    body = json.dumps(request_body(example, COMPARED, RATIOS[COMPARED], 3))
                    console.print("the service stays up until Ctrl-C; try:")
                    url = f"http://127.0.0.1:{port}/v1/rag/generate"
                    curl = f"curl -N -H 'Content-Type: application/json' {url} -d '{body}'"
                    console.print(curl, soft_wrap=True, markup=False, highlight=False)
                    process.wait()
        except ServiceError as error:
            console.print(f"[red]{error}[/]", highlight=False)
            return 2
        except KeyboardInterrupt:
            return 0
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
