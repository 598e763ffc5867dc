"""`kvstitch tune`: measures settings on a model and documents, and writes down which are best."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvstitch.service.cli.documents import sources
from kvstitch.service.cli.documents.sources import UnsendableDocument, scan
from kvstitch.service.cli.options import (
    WrongArgument,
    add_setting_options,
    minutes,
    settings_of,
    share,
)
from kvstitch.service.cli.output import console, emit
from kvstitch.service.shared import resources

if TYPE_CHECKING:
    from kvstitch.retriever import Document
    from kvstitch.service.settings import Settings
    from kvstitch_tune.run import Outcome, Plan

TUNING_FOLDER = "tuning"
FORMAT = 2
"""Of records; those of another format are left as they are."""
MAX_DOCUMENTS = 1000
"""Of more documents a seeded sample is read: parsing and embedding would take all the time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure methods, ratios, prefix modes, codecs and evictions with a model on documents, "
        "against full prefill, and write the best settings where `serve` finds them as its "
        "defaults. Stopped, it goes on when it is given again."
    )
    add = parser.add_argument
    add("--documents", metavar="FOLDER", help="files as for `ingest`")
    add("--collection", metavar="NAME", help="or a collection of the data folder, also while a "
        "service runs from it")  # fmt: skip
    add("--questions", metavar="FILE.jsonl", help="objects with `question` (default: made from "
        "sentences of the documents)")  # fmt: skip
    add("--minutes", type=minutes, default=10.0, help="it may take about so long (default: 10)")
    add("--out", metavar="DIR", help="for report and calibration.json (default: the data folder, "
        "where `serve` looks)")  # fmt: skip
    add("--fidelity", type=share, metavar="SHARE", help="of the answers that are to be full "
        "prefill's, as 0.9: choose what keeps it for fewest operations")  # fmt: skip
    add("--seed", type=int, default=0, help="of everything that is drawn (default: 0)")
    add("--fresh", action="store_true", help="begin anew, without what was measured before")
    add("--json", action="store_true", help="JSON on stdout and nothing else")
    helps = {
        "--model": "as for `serve` (default: the demo model)",
        "--data-dir": "the service's data folder",
        "--dtype": "auto, float32, float16 or bfloat16",
        "--quantize": "off, int8 or int4: weights in fewer bits, as for `serve`",
        "--device": "auto, cpu, cuda or cuda:N",
        "--embedder": "sentence-embedding model folder (default: all-MiniLM-L6-v2)",
        "--prefix-mode": "of the defaults that the choice is compared with (default: as serve)",
        "--threads": "CPU threads",
        "--chunk-tokens": "tokens per chunk (default: the model folder's)",
        "--top-k": "passages per answer (default: the model folder's)",
    }
    add_setting_options(parser, helps)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run, or go on with, a tuning; 0 when the report is written."""
    resources.prepare_torch()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from kvstitch.service.gateway.data_folder import UMASK

    if (args.documents is None) == (args.collection is None):
        raise WrongArgument("give --documents FOLDER, or --collection NAME of the data folder")
    settings = settings_of(args)
    os.umask(UMASK)
    return _tune(args, settings)


def _tune(args: argparse.Namespace, settings: Settings) -> int:
    # torch takes seconds to import, so wrong arguments are found before.
    from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
    from kvstitch.service.models import prepare_model
    from kvstitch.service.shared.model_fingerprint import CALIBRATION_FILE, fingerprint
    from kvstitch.service.worker.api import load_model, read_calibration, set_threads
    from kvstitch_tune import questions
    from kvstitch_tune.model_calibration import merge
    from kvstitch_tune.records import describe
    from kvstitch_tune.report import calibration, evidence
    from kvstitch_tune.run import Plan
    from kvstitch_tune.run import run as tune

    asked = questions.of_file(Path(args.questions)) if args.questions else []
    documents = _documents(args.documents, settings, args.seed) if args.documents else []
    folder = prepare_model(settings)
    set_threads(settings.threads)
    model = fingerprint(str(folder), settings.quantize)
    out = Path(args.out) if args.out else settings.data_dir / TUNING_FOLDER
    adapter = load_model(
        str(folder), dtype=settings.dtype, device=settings.device_of(0), quantize=settings.quantize
    )
    facts = read_calibration(folder, adapter.facts)
    prompts = PromptBuilder(folder, settings)
    plan = Plan(out, args.minutes, args.seed, asked, prompts.prefix_mode, args.fidelity)
    dtype = str(adapter.dtype).removeprefix("torch.")
    source = json.dumps([FORMAT, args.documents, args.collection, asked, args.seed,
                         settings.retrieval, prompts.format.top_k, prompts.format.passage_order,
                         prompts.format.chunk_tokens])  # fmt: skip
    run_id = hashlib.blake2b(source.encode(), digest_size=4).hexdigest()
    records = out / f"trials-{model[:12]}-{dtype}-{run_id}.jsonl"
    if args.fresh:
        for path in (records, *(records.with_suffix(s) for s in (".time.json", ".model.json"))):
            path.unlink(missing_ok=True)
    with (
        _corpus(args, settings, documents, prompts, adapter.max_context) as corpus,
        _progress(args) as (on_progress, on_estimate),
    ):
        outcome = tune(
            plan, corpus, adapter, facts,
            model_folder=folder,
            records=records,
            has_bos=prompts.tokenizer.bos is not None,
            on_progress=on_progress,
            on_estimate=on_estimate,
        )  # fmt: skip
    import torch

    about = {
        "model_name": settings.model_name,
        "fingerprint": model,
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "environment": describe(),
    }
    found = evidence(outcome, plan, about)
    path = (Path(args.out) if args.out else settings.data_dir) / CALIBRATION_FILE
    merge(path, **calibration(outcome, model, found))
    _finish(args, plan, outcome, found, path)
    return 0


def _finish(
    args: argparse.Namespace, plan: Plan, outcome: Outcome, found: dict[str, Any], path: Path
) -> None:
    from kvstitch_tune.page import page, verdict
    from kvstitch_tune.report import report as report_of

    report = report_of(outcome, found)
    settings = json.dumps(json.loads(path.read_text())["defaults"], indent=1)
    (plan.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (plan.out / "report.html").write_text(page(report, settings), encoding="utf-8")
    if args.json:
        emit({**report, "calibration": str(path), "report": str(plan.out / "report.html")})
        return
    print(verdict(report))
    for text in report["warnings"]:
        print(text)
    print(f"report: {plan.out / 'report.html'}\ndefaults of the service: {path}")


@contextmanager
def _corpus(
    args: argparse.Namespace,
    settings: Settings,
    documents: list[Document],
    prompts: Any,
    max_context: int,
) -> Iterator[Any]:
    from kvstitch_tune import corpus

    if args.collection is not None:
        opened = corpus.of_collection(args.collection, prompts, settings, max_context=max_context)
    else:
        opened = corpus.of_documents(documents, prompts, settings, max_context=max_context)
    with opened as found:
        yield found


def _documents(folder: str, settings: Settings, seed: int) -> list[Document]:
    """Return the documents of a folder, parsed as the service parses them; of many, a sample."""
    from kvstitch.retriever import Document
    from kvstitch.service.errors import InvalidRequest
    from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
    from kvstitch.service.gateway.documents.parsing.file_kinds import file_kind
    from kvstitch.service.gateway.documents.parsing.parser import DocumentParser, FileLimits

    found = scan([folder])
    contents = [*found.failed, *sources.read(found.sources, {})]
    if len(contents) > MAX_DOCUMENTS:
        contents = random.Random(seed).sample(contents, MAX_DOCUMENTS)
    parser = DocumentParser(FileLimits.of(settings))

    async def parse() -> list[Document]:
        parsed: list[Document] = []
        for number, read in enumerate(contents):
            if isinstance(read, UnsendableDocument):
                print(f"left out: {read.message}", file=sys.stderr)
            if not isinstance(read, sources.DocumentToSend):
                continue
            row = json.loads(read.content) if read.media_type == sources.ROW else None
            content = read.content if row is None else str(row["text"]).encode()
            kind = "text" if row else file_kind(read.doc_id, read.media_type, content)
            title = (row or {}).get("title", "")
            item = IngestDocument(read.doc_id, "tune", kind, content, title, number=number)
            try:
                found = await parser.document(item)
                parsed.append(Document(found.doc_id, found.text, found.title, marks=found.marks))
                for warning in found.warnings:
                    print(f"{read.doc_id}: {warning.message}", file=sys.stderr)
            except InvalidRequest as error:
                print(f"left out: {read.doc_id}: {error.message}", file=sys.stderr)
        return parsed

    documents = asyncio.run(parse())
    if not documents:
        raise WrongArgument(f"{folder} holds no document that can be read")
    return documents


@contextmanager
def _progress(
    args: argparse.Namespace,
) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[int, float], None]]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    to = console(stderr=True)
    with Progress(*columns, console=to, disable=args.json or not to.is_terminal) as shown:
        task = shown.add_task("heads and layers", total=None)

        def on_progress(stage: str, prompts: int, candidates: int) -> None:
            done = f"{stage}: {prompts} prompt{'s' * (prompts > 1)}, {candidates} candidates"
            shown.update(task, description=done)
            if not to.is_terminal and not args.json:
                print(done, file=sys.stderr, flush=True)

        def on_estimate(prompts: int, needed: float) -> None:
            enough = needed <= args.minutes
            shown.console.print(
                f"{args.minutes:g} minutes are enough for about {prompts} test prompts"
                + (
                    ""
                    if enough
                    else f"; a recommendation takes about {needed:g}: end this, and give "
                    f"--minutes {needed:g}; what was measured is kept"
                )
            )

        yield on_progress, on_estimate
