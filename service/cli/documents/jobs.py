"""`kvstitch jobs`: lists, shows and cancels ingest jobs."""

import argparse
import time
from contextlib import nullcontext

from rich.live import Live
from rich.table import Table

from kvstitch.client import Client, Job
from kvstitch.service.cli.documents.sending import poll
from kvstitch.service.cli.options import add_action, add_client_options, client, positive
from kvstitch.service.cli.output import (
    console,
    emit,
    emit_line,
    job_left,
    moment,
    plain,
    progress_bars,
    table,
)  # fmt: skip

WATCH_S = 1.0
JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled", "dead")
FAILED_STATES = ("failed", "dead")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=listing, limit=20, state=None, watch=False)
    add_client_options(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    list_command = add_action(actions, "list", listing, "jobs, newest first (also without ACTION)")
    list_command.add_argument("--limit", type=positive, default=20, help="default: 20")
    list_command.add_argument("--state", choices=JOB_STATES)
    list_command.add_argument("--watch", action="store_true", help="until none of them is open")
    show_command = add_action(
        actions, "show", show, "one job with its errors; exit code 1: it failed"
    )
    show_command.add_argument("job_id", metavar="JOB_ID")
    show_command.add_argument("--watch", action="store_true", help="until it has ended")
    cancel_command = add_action(actions, "cancel", cancel, "leave what is not done of a job")
    cancel_command.add_argument("job_id", metavar="JOB_ID")


def listing(args: argparse.Namespace) -> int:
    """List jobs, newest first; with --watch until none of them is open."""
    with client(args) as service:
        if args.watch:
            _watch_all(service, args)
            return 0
        jobs = _jobs(service, args)
    if args.json:
        emit([job.raw for job in jobs])
    elif jobs:
        console().print(_table(jobs))
    else:
        print("no jobs")
    return 0


def show(args: argparse.Namespace) -> int:
    """Show one job with its errors, with --watch once it has ended; 1 if it failed."""
    with client(args) as service:
        job = service.get_job(args.job_id)
        if args.watch:
            job = _watch(service, job, as_json=args.json)
    if not args.json:
        _show(job)
    elif not args.watch:
        emit(job.raw)
    return 1 if job.state in FAILED_STATES else 0


def cancel(args: argparse.Namespace) -> int:
    """Cancel the documents of a job that are not done."""
    with client(args) as service:
        job = service.cancel_job(args.job_id)
    if args.json:
        emit(job.raw)
    else:
        _show(job)
    return 0


def _jobs(service: Client, args: argparse.Namespace) -> list[Job]:
    return list(service.list_jobs(state=args.state, limit=args.limit))


def _watch_all(service: Client, args: argparse.Namespace) -> None:
    live = None if args.json else Live(console=console(), auto_refresh=False)
    with live or nullcontext():
        while True:
            jobs = _jobs(service, args)
            if live is None:
                emit_line([job.raw for job in jobs])
            else:
                live.update(_table(jobs), refresh=True)
            if all(job.ended for job in jobs):
                return
            time.sleep(WATCH_S)


def _watch(service: Client, job: Job, *, as_json: bool) -> Job:
    bar = progress_bars(as_json=as_json)
    last = None
    with bar:
        task = bar.add_task(job.state, total=job.progress.total, note="")
        while True:
            counts = job.progress
            done = counts.done + counts.failed + counts.cancelled
            bar.update(task, completed=done, description=job.state, note=job_left(job))
            if as_json and job != last:
                emit_line(job.raw)
            if job.ended:
                return job
            last = job
            (job,) = poll(service, [job.job_id])


def _table(jobs: list[Job]) -> Table:
    numbers = ("done", "failed", "cancelled", "of", "chunks")
    shown = table("job", "state", *numbers, "began", "seconds", "", numbers=(*numbers, "seconds"))
    for job in jobs:
        counts = job.progress
        shown.add_row(
            job.job_id,
            job.state,
            *map(str, (counts.done, counts.failed, counts.cancelled, counts.total, job.chunks)),
            moment(job.created),
            f"{job.updated - job.created:.1f}",
            job_left(job),
        )
    return shown


def _show(job: Job) -> None:
    out = console()
    out.print(_table([job]))
    if changes := ", ".join(f"{n} {name}" for name, n in job.changes.items() if n):
        out.print(changes)
    if job.errors:
        errors = table("document", "what is wrong")
        for error in job.errors:
            errors.add_row(plain(error.doc_id), plain(error.message))
        out.print(errors)
    if job.warnings:
        warned = table("document", "stored, but not all of it")
        for one in job.warnings:
            warned.add_row(plain(one.doc_id), plain("\n".join(w.message for w in one.warnings)))
        out.print(warned)
        if job.warned > len(job.warnings):
            out.print(f"the first {len(job.warnings)} of {job.warned} documents with warnings")
