"""`make demo`: pages of the World Factbook, ten questions, full prefill beside stored passages.

The service is left running for documents of your own; `--stop` ends it and removes its folder.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.client import Client, ServiceError
from demo.corpus_files import CorpusDocument
from demo.model import ModelMissing, choose, title
from demo.process import claim, free_port, left_running, note, start, stop, stop_left
from demo.race import race
from demo.reorder import reorder
from demo.report import costs, is_plain, print_answers, print_kinds, say, summary
from demo.scenario import FULL, SERVED, Outcome, ask, ask_both, documents, draw
from kvstitch.client import KvstitchError

DATA_DIR = Path(__file__).parents[1] / "build" / "demo"
PORT = 8000
FIRST = 10
"""Pages that are there before the race, and among which its passages are found."""


def progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    clock = TimeElapsedColumn()
    return Progress(*columns, clock, console=console, transient=True, disable=is_plain(console))


def ingest(console: Console, client: Client, pages: list[CorpusDocument]) -> float:
    """Precomputes pages, and returns the seconds that it took."""
    say(console, f"precomputing {len(pages)} pages, each twice: to stand first, and behind others")
    began = time.perf_counter()
    with progress(console) as bar:
        task = bar.add_task("pages", total=len(pages))
        for done, _ in client.precompute(pages):
            bar.update(task, completed=done)
        bar.update(task, description="the second copies")
        client.wait_complete()
    return time.perf_counter() - began


def show(console: Console, client: Client, data_dir: Path, count: int | None) -> None:
    """Ingests, races, reorders, asks, and says what it came to. The race begins when there are
    pages for one prompt, and the other pages come behind it."""
    drawn = draw(count)
    pages = sorted(documents(), key=lambda page: page.doc_id not in drawn.race.documents)
    titles = {page.doc_id: page.title for page in pages[:FIRST]}
    seconds = ingest(console, client, pages[:FIRST])
    for method in (FULL, None):
        ask(client, drawn.warm_up.question, method)
    console.rule("1  one question, two streams")
    full = race(console, client, drawn.race.question)
    say(console, f"{full.prompt_tokens} tokens in {len(full.cited)} passages")
    console.rule("2  the same passages in another order, one replaced")
    reorder(console, client, titles, drawn.race)
    console.rule(f"3  {len(drawn.asked)} questions about {len(pages)} pages")
    seconds += ingest(console, client, pages[FIRST:])
    stored = sum(file.stat().st_size for file in data_dir.rglob("*") if file.is_file())
    outcomes: list[Outcome] = []
    with progress(console) as bar:
        for index, question in enumerate(bar.track(drawn.asked, description="asking")):
            outcomes.append(ask_both(client, question, index))
    print_answers(console, outcomes, long=count is None)
    if count is None:
        print_kinds(console, outcomes)
    say(console, summary(outcomes))
    console.rule("4  what it costs")
    say(console, costs(outcomes, seconds, stored, len(pages)))


def print_next(console: Console, url: str) -> None:
    """Prints where the console is, and what to do with one's own files."""
    program = Path(sys.executable).with_name("kvstitch")
    here = Path.cwd()
    name = program.relative_to(here) if program.is_relative_to(here) else program
    where = "--collection mine" + ("" if url.endswith(f":{PORT}") else f" --url {url}")
    console.rule("yours")
    say(console, f"The service goes on; its console: {url}/ui. With your own files:")
    for command in ("ingest FOLDER", 'ask "QUESTION"', 'ask "QUESTION" --compare balanced'):
        say(console, f"  {name} {command} {where}")
    say(console, "It ends, and its folder goes, with: make demo DEMO=--stop")


def run(console: Console, args: argparse.Namespace) -> int:
    """Serves, shows, and leaves the service running.

    Raises:
        ModelMissing: The model cannot be had.
        ServiceError: The service could not be started, or failed a job.
        KvstitchError: It refused something, or is away.
    """
    data_dir: Path = args.data_dir.resolve()
    if args.stop:
        say(console, "stopped" if stop_left(data_dir) else "no service of the demo is running")
        return 0
    if (url := left_running(data_dir)) is not None:
        say(console, f"The last demo's service runs at {url}. End it: make demo DEMO=--stop")
        return 2
    folder = choose(args.model)
    claim(data_dir)
    port = args.port or free_port(PORT)
    url = f"http://127.0.0.1:{port}"
    say(console, f"starting the service with {title(folder)} ...")
    process = start(data_dir, port, data_dir / "service.log", folder, SERVED)
    note(process, data_dir, url)
    try:
        with Client(url) as client:
            show(console, client, data_dir, args.questions)
    except BaseException:
        stop(process)
        raise
    print_next(console, url)
    return 0


def number_of_questions(text: str) -> int | None:
    """Reads a positive number, or "all" as none."""
    if text == "all":
        return None
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"a number above 0, or all; not {text!r}")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder, a GGUF file or a hub id; see docs/console.md")
    parser.add_argument(
        "--questions", type=number_of_questions, default=10, help="or: all, in a long table"
    )
    parser.add_argument("--data-dir", type=Path, default=DATA_DIR, help="emptied at the start")
    parser.add_argument("--port", type=int, default=0, help=f"default: {PORT}, or any free one")
    parser.add_argument("--picture", type=Path, help="writes what is shown as SVG, too")
    parser.add_argument("--stop", action="store_true", help="end the service of the last demo")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the service is stopped then, too
    console = Console(width=None if sys.stdout.isatty() else 120, record=args.picture is not None)
    try:
        return run(console, args)
    except (ModelMissing, ServiceError, KvstitchError) as error:
        say(console, str(error), "red")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if args.picture is not None:
            console.save_svg(str(args.picture), title="make demo")


if __name__ == "__main__":
    sys.exit(main())
