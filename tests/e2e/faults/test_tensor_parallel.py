"""A rank of a tensor-parallel worker is killed under load: the gang is started again."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import Service

QUESTION = "Which colour is it?"
STREAMS = 3
MANY = 700  # tokens; they take longer than all else here


def test_a_killed_rank_ends_every_stream_in_an_error_and_all_ranks_start_again(
    serve: Serve, twelve: Documents
) -> None:
    with serve(tensor_parallel=2, threads=2) as service:
        service.ingest(twelve[:3])
        before = service.ask(QUESTION, max_tokens=4)
        worker = service.worker_pid()
        assert worker is not None
        [other] = ranks_of(worker)
        answering = Barrier(STREAMS + 1)
        with ThreadPoolExecutor(STREAMS) as clients:
            streams = [clients.submit(last_event, service, answering) for _ in range(STREAMS)]
            answering.wait(240)
            os.kill(other, signal.SIGKILL)
            ends = [stream.result(240) for stream in streams]
        assert [(name, end["error"]["code"]) for name, end in ends] == [
            ("error", "worker_unavailable")
        ] * STREAMS
        assert "rank 1 of 2 ended (code -9)" in service.log()
        service.wait_ready()
        again = service.worker_pid()
        assert again is not None and again != worker and ranks_of(again) != [other]
        after = service.ask(QUESTION, max_tokens=4)
        assert after["text"] == before["text"]
        assert "cold" not in {d["tier"] for d in after["cache"]["documents"]}
        [left] = ranks_of(again)
        os.kill(again, signal.SIGKILL)
        service.until(lambda: not Path(f"/proc/{left}").exists(), "a rank outlives rank 0")


def last_event(service: Service, answering: Barrier) -> tuple[str, dict[str, Any]]:
    """The event that ends a stream; all streams have begun to answer before any goes on."""
    with service.stream(QUESTION, max_tokens=MANY) as events:
        assert [next(events)[0], next(events)[0]] == ["sources", "token"]
        answering.wait(240)
        return list(events)[-1]


def ranks_of(worker: int) -> list[int]:
    """Process ids of the other ranks."""
    threads = Path(f"/proc/{worker}/task").glob("*/children")
    children = [int(pid) for thread in threads for pid in thread.read_text().split()]
    program = b"service.worker.parallel.other_rank"
    return [pid for pid in children if program in Path(f"/proc/{pid}/cmdline").read_bytes()]
