"""`kvstitch jobs`: lists, shows and cancels ingest jobs."""

from __future__ import annotations

import argparse
import time
from typing import Any
from urllib.parse import quote

import httpx
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from service.cli.corpus.job_polling import ended, poll
from service.cli.output import console, emit, emit_line, moment, plain, table, time_left
from service.cli.service_client import checked, client, pages

WATCH_S = 1.0
FAILED_STATES = ("failed", "dead")


def listing(args: argparse.Namespace) -> int:
    """List jobs, newest first; with --watch until none of them is open."""
    with client(args) as http:
        if args.watch:
            return _watch_all(http, args)
        jobs = _jobs(http, args)
    if args.json:
        emit(jobs)
    elif jobs:
        console().print(_table(jobs))
    else:
        print("no jobs")
    return 0


def show(args: argparse.Namespace) -> int:
    """Show one job with its errors, with --watch once it has ended; 1 if it failed."""
    with client(args) as http:
        job = checked(http.get(f"/admin/jobs/{quote(args.job_id, safe='')}"))
        if args.watch:
            job = _watch(http, job, as_json=args.json)
    if args.json:
        if not args.watch:
            emit(job)
    else:
        _show(job)
    return 1 if job["state"] in FAILED_STATES else 0


def cancel(args: argparse.Namespace) -> int:
    """Cancel the documents of a job that are not done."""
    with client(args) as http:
        job = checked(http.delete(f"/admin/jobs/{quote(args.job_id, safe='')}"))
    if args.json:
        emit(job)
    else:
        _show(job)
    return 0


def _jobs(http: httpx.Client, args: argparse.Namespace) -> list[dict[str, Any]]:
    return list(pages(http, "/admin/jobs", "jobs", args.limit, state=args.state))


def _watch_all(http: httpx.Client, args: argparse.Namespace) -> int:
    jobs = _jobs(http, args)
    if args.json:
        while True:
            emit_line(jobs)
            if all(map(ended, jobs)):
                return 0
            time.sleep(WATCH_S)
            jobs = _jobs(http, args)
    with Live(_table(jobs), console=console(), auto_refresh=False) as live:
        while not all(map(ended, jobs)):
            time.sleep(WATCH_S)
            jobs = _jobs(http, args)
            live.update(_table(jobs), refresh=True)
    return 0


def _watch(http: httpx.Client, job: dict[str, Any], *, as_json: bool) -> dict[str, Any]:
    stderr = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        TimeElapsedColumn(),
        console=stderr,
        disable=as_json or not stderr.is_terminal,
    )
    last = None
    with bar:
        task = bar.add_task(job["state"], total=job["progress"]["total"], left="")
        while True:
            counts = job["progress"]
            done = counts["done"] + counts["failed"] + counts["cancelled"]
            left = time_left(job.get("eta_s"))
            bar.update(task, completed=done, description=job["state"], left=left)
            if as_json and job != last:
                emit_line(job)
            if ended(job):
                return job
            last = job
            (job,) = poll(http, [job["job_id"]])


def _table(jobs: list[dict[str, Any]]) -> Table:
    numbers = ("done", "failed", "cancelled", "of", "chunks")
    shown = table("job", "state", *numbers, "began", "seconds", "", numbers=(*numbers, "seconds"))
    for job in jobs:
        counts = job["progress"]
        shown.add_row(
            job["job_id"],
            job["state"],
            *(str(counts[name]) for name in ("done", "failed", "cancelled", "total")),
            str(job["chunks"]),
            moment(job["created"]),
            f"{job['updated'] - job['created']:.1f}",
            time_left(job.get("eta_s")),
        )
    return shown


def _show(job: dict[str, Any]) -> None:
    out = console()
    out.print(_table([job]))
    if changes := ", ".join(f"{n} {name}" for name, n in job["changes"].items() if n):
        out.print(changes)
    if job["errors"]:
        errors = table("document", "what is wrong")
        for error in job["errors"]:
            errors.add_row(plain(error["doc_id"]), plain(error["message"]))
        out.print(errors)
