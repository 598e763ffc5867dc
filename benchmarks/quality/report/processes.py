"""Answers what is not recorded yet, in this process or in several.

Each process has its own model and its own file. A killed process leaves only whole records; on
Ctrl-C each process finishes its batch.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.context import SpawnContext
from typing import Any

from benchmarks.quality.bench import Result
from benchmarks.quality.configuration import Configuration
from benchmarks.quality.report.subject import Place, Subject, longest
from benchmarks.quality.run import Batch, Progress, Shards, missing, parts
from benchmarks.quality.sample import Sample
from service.errors import WorkerFault
from tuning.records import RecordFile

_POLL_S = 0.5


def answer(
    subject: Subject,
    samples: Sequence[Sample],
    configurations: Sequence[Configuration],
    results: Shards[Result],
    *,
    processes: int = 1,
) -> int:
    """Adds the missing answers to `results`.

    Returns:
        Number of new answers.

    Raises:
        WorkerFault: a process failed; what it had answered is recorded.
    """
    batches = list(missing(samples, configurations, results))
    progress = Progress("answers", sum(len(w) for batch in batches for _, w in batch))
    room = longest(samples)
    try:
        if processes == 1 or len(batches) < 2:
            _work(subject, room, batches, results.file(0), progress.add)
        else:
            files = [results.file(number) for number in range(processes)]
            _spread(subject.place, room, batches, files, progress.add)
    except KeyboardInterrupt:
        print("\ninterrupted: the report is on what was measured so far", file=sys.stderr)
    progress.close()
    results.load()
    return progress.done


def _work(
    subject: Subject,
    room: int,
    batches: Iterable[Batch],
    file: RecordFile[Result],
    done: Callable[[int], None],
) -> None:
    with subject.bench(room) as bench:
        for batch in batches:
            for part in parts(batch):
                made = bench.measure([s for s, _ in part], [w for _, w in part])
                file.add(made)
                done(len(made))


def _spread(
    place: Place,
    room: int,
    batches: Sequence[Batch],
    files: Sequence[RecordFile[Result]],
    done: Callable[[int], None],
) -> None:
    context: SpawnContext = multiprocessing.get_context("spawn")
    todo, counts, stop = context.Queue(), context.Queue(), context.Event()
    for batch in [*batches, *[None] * len(files)]:
        todo.put(batch)
    workers = [
        context.Process(target=_process, args=(place, room, file, todo, counts, stop), daemon=True)
        for file in files
    ]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers) or not counts.empty():
            try:
                done(counts.get(timeout=_POLL_S))
            except queue.Empty:
                if any(worker.exitcode for worker in workers):
                    raise WorkerFault("a process failed, its error is above") from None
    finally:
        stop.set()
        todo.cancel_join_thread()  # batches that no process takes any more
        for worker in workers:
            worker.join()


def _process(
    place: Place, room: int, file: RecordFile[Result], todo: Any, counts: Any, stop: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work(Subject(place), room, _taken(todo, stop), file, counts.put)


def _taken(todo: Any, stop: Any) -> Iterator[Batch]:
    """Takes batches until there are none left, or the parent process stops or dies."""
    parent = multiprocessing.parent_process()
    while not stop.is_set() and (parent is None or parent.is_alive()):
        try:
            batch: Batch | None = todo.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if batch is None:
            return
        yield batch
