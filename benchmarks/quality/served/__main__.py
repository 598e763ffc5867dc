"""Right answers of a served model with all defaults, beside full prefill's.

    python -m benchmarks.quality.served --model FILE.gguf --split dev --out FOLDER

Does what a stranger does: starts `kvstitch serve --model` with a data folder of its own, ingests
the documentation (`python -m benchmarks.quality.fetch_docs`), waits until nothing is left to
compute, and asks the questions over HTTP, each with all defaults and with full prefill. Answers are
appended to --out as they come; the same command goes on where another was stopped, with its data
folder. A fresh --out is a fresh data folder. Writes served.md and served.json there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common.provenance import provenance
from benchmarks.quality.served.asking import Record, append, ask, read
from benchmarks.quality.served.page import page
from benchmarks.quality.tasks import documentation
from demo.client import ServiceError
from demo.process import free_port, service
from kvstitch.client import Client, KvstitchError
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.settings import PREFIX
from kvstitch_tune.records import describe

SPLITS = ("dev", "test")
TIMEOUT_S = 600.0
"""Of one answer."""
POLL_S = 2.0


class NotIngested(Exception):
    """Some documents are not stored; the message says which and why."""


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.served",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="as of `kvstitch serve`")
    parser.add_argument("--split", choices=SPLITS, default="dev")
    parser.add_argument("--questions", type=int, help="the first of the split (default: all)")
    default = documentation.default_folder()
    parser.add_argument("--docs", type=Path, default=default, help="(default: %(default)s)")
    parser.add_argument(
        "--files",
        choices=("all", "asked"),
        default="all",
        help="asked: ingest only those that the questions are about, for a first look",
    )
    parser.add_argument(
        "--exact-below", type=float, nargs="+", default=[], help="ask with these values, too"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(given)
    args.out.mkdir(parents=True, exist_ok=True)
    answers = args.out / f"answers-{args.split}.jsonl"
    asked = documentation.load(args.split)[: args.questions]
    about: dict[str, Any] = {"model": args.model.name, "split": args.split}
    try:
        files = documentation.contents(args.docs)
        if args.files == "asked":
            about_them = {question.file for question in asked}
            files = [(name, content) for name, content in files if name in about_them]
        port = free_port()
        with (
            service(args.out / "data", port, args.out / "service.log", args.model),
            Client(f"http://127.0.0.1:{port}", timeout_s=TIMEOUT_S) as client,
        ):
            about |= _ingest(client, files)
            known = {record.question for record in read(answers)}
            for number, question in enumerate(asked, start=1):
                if question.question not in known:
                    append(answers, ask(client, question, args.exact_below))
                print(f"\r{number}/{len(asked)} questions ", end="", file=sys.stderr, flush=True)
    except (InvalidRequest, KvstitchError, ServiceError, NotIngested) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from here", file=sys.stderr)
        return 130
    print(file=sys.stderr)
    wanted = {question.question for question in asked}
    records = [record for record in read(answers) if record.question in wanted]
    print(_write(args.out, about, records))
    return 0


def _ingest(client: Client, files: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    """Has the files stored as far as they are not, and returns what the service says of itself.

    Raises:
        NotIngested: some files are not stored.
    """
    started = time.perf_counter()
    job = client.ingest_files(files)
    if job.state != "succeeded":
        raise NotIngested(f"ingestion ended as {job.state}: {job.errors[:3]}")
    while not (status := client.status())["corpus"]["complete"]:
        time.sleep(POLL_S)
    set_here = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    return {
        "version": status["version"],
        "prompt": status["prompt"],
        "corpus": {name: status["corpus"][name] for name in ("documents", "chunks")},
        "served": status["model"],
        "settings_set": set_here,
        "ingest_s": time.perf_counter() - started,
    }


def _write(out: Path, about: dict[str, Any], records: Sequence[Record]) -> str:
    record = {**about, "environment": describe(), "answers": [asdict(one) for one in records]}
    title = (
        f"{about['model']}, all defaults, {about['corpus']['documents']} files ({about['split']})"
    )
    prompt, corpus = about["prompt"], about["corpus"]
    made = (
        f"\nPrefix mode {prompt['prefix_mode']}, {corpus['chunks']} pieces of up to "
        f"{prompt['chunk_tokens']} tokens, {prompt['top_k']} a prompt.\n"
    )
    text = page(title, records) + made + provenance(record)
    (out / "served.md").write_text(text, encoding="utf-8")
    (out / "served.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return text


if __name__ == "__main__":
    sys.exit(main())
