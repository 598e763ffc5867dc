"""What Ray runs: an actor that claims ranges by number and ingests them with a worker of its own.

Ray calls it from one thread; the ingest is asynchronous, on an event loop in another. Only numbers
and counts come and go. Nothing that a document can do raises here: errors are in the range's row.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kvstitch.service.errors import DatabaseUnavailable, InvalidSetting, KvstitchError, ModelRefused
from kvstitch.service.gateway.documents.background_loop import retry_after_s, side_by_side
from kvstitch.service.gateway.worker_client.supervisor import COMMAND
from kvstitch.service.models import prepare_model
from kvstitch.service.settings import all_settings
from kvstitch_ray.bulk.corpus import BulkCorpus
from kvstitch_ray.bulk.range_table import RangeTable
from kvstitch_ray.bulk.ranges import DocumentReader, RangeQueue
from kvstitch_ray.bulk.records import Counts, Range, Run
from kvstitch_ray.bulk.sources import source

logger = logging.getLogger(__name__)
T = TypeVar("T")
PAUSE_S = 2.0  # after a range that could not be done
REPORT_S = 2.0  # between two notes of how far a range is
LOOK_AGAIN_S = 0.05  # while one of the two steps waits for the other


class RangeLost(Exception):
    """The range is another worker's by now."""


class RangeActor:
    """Ingests the ranges whose numbers it is given, unless others do."""

    def __init__(
        self,
        settings: dict[str, Any],
        run: Run,
        *,
        input_endpoint: str = "",
        input_region: str = "",
        worker_command: Sequence[str] = COMMAND,
    ) -> None:
        # An actor is its constructor to Ray: what takes long begins here, not at the first range.
        self._settings = all_settings()(**settings)  # those of plugins, too
        self._run = run
        self._input = (input_endpoint, input_region)
        self._worker_command = worker_command
        self._table = RangeTable(self._settings.database, connections=2)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="bulk")
        self._thread.start()
        self._refused: str | None = None
        self._corpus: BulkCorpus | None = None
        self._reader: DocumentReader | None = None
        try:
            self._await(self._start())
        except (InvalidSetting, ModelRefused) as error:
            self._refused = error.message

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Ingest ranges."""
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
        """Stop the worker, and give back what is under way."""
        if self._corpus is not None:
            self._await(self._corpus.close())
        self._table.close()
        self._await(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _worker_cpu_s(self) -> float:
        """Return the processor seconds of the worker that runs now; 0 if there is none."""
        pid = None if self._corpus is None else self._corpus.worker_pid
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
        except RangeLost:
            return "elsewhere", ""
        except Exception as error:  # a fault of ours must not end the run: the row remembers it
            logger.exception("range %d", number)
            return "again", f"{type(error).__name__}: {error}"

    async def _start(self) -> None:
        self._table.start()
        folder: Path = prepare_model(self._settings)
        self._corpus = BulkCorpus(self._settings, folder, worker_command=self._worker_command)
        await self._corpus.start()
        endpoint, region = self._input
        self._reader = DocumentReader(
            source(self._run.input, endpoint=endpoint, region=region),
            self._corpus.settings,
            tenant=self._run.tenant,
            collection=self._run.collection,
            metadata=self._run.metadata,
        )

    async def _claim_and_ingest(self, number: int, counts: Counts) -> tuple[str, str]:
        assert self._corpus is not None
        await self._corpus.ready()
        owner = self._corpus.owner
        part = await asyncio.to_thread(self._table.claim, number, owner)
        if part is None:
            return "elsewhere", ""
        ingesting = asyncio.create_task(self._ingest(part, counts))
        reporting = asyncio.create_task(self._report_progress(number, counts))
        try:
            await asyncio.wait({ingesting, reporting}, return_when=asyncio.FIRST_COMPLETED)
            if reporting.done():
                reporting.result()
            await ingesting
        except RangeLost:
            raise
        except Exception as error:
            message = error.message if isinstance(error, KvstitchError) else repr(error)
            await asyncio.to_thread(self._table.give_back, number, owner, message)
            await asyncio.sleep(PAUSE_S)
            raise
        finally:
            for task in (ingesting, reporting):
                task.cancel()
            await asyncio.gather(ingesting, reporting, return_exceptions=True)
        if not await asyncio.to_thread(self._table.finish, number, owner, counts):
            raise RangeLost
        return "done", ""

    async def _ingest(self, part: Range, counts: Counts) -> None:
        """Have all documents of a range stored, as the gateway's background tasks do it."""
        corpus, reader = self._corpus, self._reader
        assert corpus is not None and reader is not None
        queue = RangeQueue(
            reader.read(part), counts, corpus.record_sizes, whole=corpus.chooses_prefixes
        )
        indexing, kv = corpus.stages(queue)

        async def index() -> bool:
            return await indexing.index_batch() != "nothing"

        async def work_off(step: Callable[[], Awaitable[bool]]) -> None:
            while not queue.ended:
                try:
                    found = await step()
                except Exception as error:
                    if (pause_s := retry_after_s(error)) is None:
                        raise
                    logger.warning("range %d waits: %s", part.number, error)
                    await asyncio.sleep(pause_s)
                    await corpus.ready()
                else:
                    await asyncio.sleep(0 if found else LOOK_AGAIN_S)

        await side_by_side([partial(work_off, index), partial(work_off, kv.store_batch)], 2)

    async def _report_progress(self, number: int, counts: Counts) -> None:
        """Write how far the range is; raises RangeLost when it is another's."""
        assert self._corpus is not None
        while True:
            await asyncio.sleep(REPORT_S)
            try:
                owner = self._corpus.owner
                if not await asyncio.to_thread(self._table.note_progress, number, owner, counts):
                    raise RangeLost
            except DatabaseUnavailable as error:
                logger.warning("no progress is noted: %s", error.message)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
