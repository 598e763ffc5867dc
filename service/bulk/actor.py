"""What Ray runs: an actor that claims ranges by number and ingests them with a worker of its own.

Ray calls it from one thread; the ingest is asynchronous, on an event loop in another. Only numbers
and counts come and go. Nothing that a document can do raises here: errors are in the range's row.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from service.bulk.corpus_access import CorpusAccess
from service.bulk.documents import DocumentReader
from service.bulk.range_ingest import RangeIngest
from service.bulk.range_table import BEAT_S, LEASE_S, RangeTable
from service.bulk.records import Counts, Run
from service.bulk.sources import source
from service.errors import DatabaseUnavailable, InvalidSetting, KvstitchError, ModelRefused
from service.gateway.worker_client.supervisor import COMMAND
from service.models.model_finder import ModelFinder
from service.settings import Settings

logger = logging.getLogger(__name__)
T = TypeVar("T")
PAUSE_S = 2.0  # after a range that could not be done


class LeaseLost(Exception):
    """The range is another worker's by now."""


class RangeActor:
    """Ingests the ranges whose numbers it is given, unless others do.

    Args:
        settings: Of the service, as `Settings.model_dump` makes them.
        run: Which; its input must be visible here.
        lease_s: As of `RangeTable`.
        input_endpoint: Of the S3 server of the input; "": AWS.
        input_region: Likewise.
        worker_command: Starts a worker process.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        run: Run,
        *,
        lease_s: float = LEASE_S,
        input_endpoint: str = "",
        input_region: str = "",
        worker_command: Sequence[str] = COMMAND,
    ) -> None:
        # An actor is its constructor to Ray: what takes long begins here, not at the first range.
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        self._settings = Settings(**settings)
        self._run = run
        self._input = (input_endpoint, input_region)
        self._worker_command = worker_command
        self._table = RangeTable(self._settings.database, connections=2, lease_s=lease_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="bulk")
        self._thread.start()
        self._ingest: RangeIngest | None = None
        self._refused: str | None = None
        self._corpus: CorpusAccess | None = None
        try:
            self._await(self._start())
        except (InvalidSetting, ModelRefused) as error:
            self._refused = error.message

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Ingest ranges.

        Args:
            batch: `number`: of their rows.

        Returns:
            By range its number; what became of it (done, elsewhere, again or refused); the reason,
            where it is refused or is to be done again; its chunks; processor seconds that this
            process and its worker took for it.
        """
        names = ("number", "outcome", "reason", "chunks", "ingest_cpu_s", "worker_cpu_s")
        rows: list[tuple[Any, ...]] = []
        for number in batch["number"]:
            counts = Counts()
            ingest, worker = time.process_time(), self._worker_cpu_s()
            outcome, reason = self._range(int(number), counts)
            took = (time.process_time() - ingest, max(0.0, self._worker_cpu_s() - worker))
            rows.append((int(number), outcome, reason, counts.chunks, *took))
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}

    def close(self) -> None:
        """Stop the worker; what is under way is another's after the lease."""
        if self._corpus is not None:
            self._await(self._corpus.close())
        self._table.close()
        self._await(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _worker_cpu_s(self) -> float:
        """Processor seconds of the worker that runs now; 0 where there is none."""
        pid = None if self._corpus is None else self._corpus.process.pid
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _range(self, number: int, counts: Counts) -> tuple[str, str]:
        if self._refused is not None:
            return "refused", self._refused
        try:
            return self._await(self._claim_and_ingest(number, counts))
        except (InvalidSetting, ModelRefused) as error:
            self._refused = error.message
            return "refused", error.message
        except KvstitchError as error:
            return "again", error.message
        except LeaseLost:
            return "elsewhere", ""
        except Exception as error:  # a fault of ours must not end the run: the row remembers it
            logger.exception("range %d", number)
            return "again", f"{type(error).__name__}: {error}"

    async def _start(self) -> None:
        self._table.start()
        folder: Path = ModelFinder.of(self._settings).prepare(self._settings.model)
        self._corpus = CorpusAccess(self._settings, folder, worker_command=self._worker_command)
        await self._corpus.start()
        endpoint, region = self._input
        reader = DocumentReader(
            source(self._run.input, endpoint=endpoint, region=region),
            self._corpus.settings,
            tenant=self._run.tenant,
            collection=self._run.collection,
            metadata=self._run.metadata,
        )
        self._ingest = RangeIngest(self._corpus, reader)

    async def _claim_and_ingest(self, number: int, counts: Counts) -> tuple[str, str]:
        assert self._ingest is not None
        part = await asyncio.to_thread(self._table.claim, number, self.owner)
        if part is None:
            return "elsewhere", ""
        ingesting = asyncio.create_task(self._ingest.ingest(part, counts))
        beating = asyncio.create_task(self._beat(number, counts))
        try:
            await asyncio.wait({ingesting, beating}, return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
            await ingesting
        except LeaseLost:
            raise
        except Exception as error:
            message = error.message if isinstance(error, KvstitchError) else repr(error)
            await asyncio.to_thread(self._table.give_back, number, self.owner, message)
            await asyncio.sleep(PAUSE_S)
            raise
        finally:
            for task in (ingesting, beating):
                task.cancel()
            await asyncio.gather(ingesting, beating, return_exceptions=True)
        if not await asyncio.to_thread(self._table.finish, number, self.owner, counts):
            raise LeaseLost
        return "done", ""

    async def _beat(self, number: int, counts: Counts) -> None:
        """Signs of life; raises LeaseLost when the range is another's."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                if not await asyncio.to_thread(self._table.beat, number, self.owner, counts):
                    raise LeaseLost
            except DatabaseUnavailable as error:
                logger.warning("no sign of life: %s", error.message)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
