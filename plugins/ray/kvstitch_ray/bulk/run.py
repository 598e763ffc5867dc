"""One `kvstitch bulk`: cut the input, drive Ray, and tell how far it is."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvstitch_ray.bulk.corpus import check
from kvstitch_ray.bulk.driver import drive, require_ray
from kvstitch_ray.bulk.range_table import RangeTable
from kvstitch_ray.bulk.ranges import cut
from kvstitch_ray.bulk.records import Order, Progress, Run
from kvstitch_ray.bulk.sources import normal, source
from service.errors import DatabaseUnavailable, InvalidSetting
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.models import prepare_model
from service.prompt import CHUNK_PREFIX_MODES
from service.settings import Settings
from service.settings.calibration import calibrated
from service.shared.model_fingerprint import fingerprint

SHOWN_EVERY_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """The result of a command.

    Attributes:
        progress: How far the whole run is, also by other commands.
        errors: What is wrong with the first documents that failed.
        warnings: What is missing of the first documents that are stored in part.
        seconds: Time that this command took, without cutting the input.
        chunks: Chunks that this command's workers ingested.
        ingest_cpu_s: Processor seconds of reading, chunking, embedding and cataloguing.
        worker_cpu_s: Processor seconds of the worker processes.
    """

    progress: Progress
    errors: list[dict[str, str]]
    warnings: list[dict[str, str]]
    seconds: float
    chunks: int
    ingest_cpu_s: float
    worker_cpu_s: float

    @property
    def good(self) -> bool:
        """Whether every document is stored."""
        return not self.progress.failed and not self.progress.ranges.get("failed")


def ingest(
    settings: Settings, order: Order, *, show: Callable[[Progress], None] = lambda progress: None
) -> Outcome:
    """Have the whole input stored; what was done before, or is done elsewhere, is not again."""
    require_ray()
    found = source(order.input, endpoint=order.input_endpoint, region=order.input_region)
    folder = prepare_model(settings)
    run = run_of(settings, folder, order)
    table = RangeTable(settings.database)
    table.start()
    try:
        table.begin(run)
        if order.again:
            table.again(run.run_id)
        cut(found, table, run.run_id, order.range_documents)
        began = time.monotonic()
        with _shown(run, table, show):
            said = drive(settings, run, table, order)
            rows = [row for row in said if row["outcome"] == "done"]
        return Outcome(
            table.progress(run),
            table.errors(run.run_id),
            table.warnings(run.run_id),
            time.monotonic() - began,
            sum(int(row["chunks"]) for row in rows),
            sum(float(row["ingest_cpu_s"]) for row in rows),
            sum(float(row["worker_cpu_s"]) for row in rows),
        )
    finally:
        table.close()


@contextmanager
def _shown(run: Run, table: RangeTable, show: Callable[[Progress], None]) -> Iterator[None]:
    """Call `show` every few seconds while the block lasts."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SHOWN_EVERY_S):
            try:
                show(table.progress(run))
            except DatabaseUnavailable:  # the workers wait for it, too
                continue

    watching = threading.Thread(target=watch, daemon=True, name="bulk-progress")
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def progress_of_runs(
    settings: Settings, given: str | None
) -> list[tuple[Progress, list[dict[str, str]]]]:
    """Return all runs of the database, newest first, or of one input, each with its errors."""
    if not settings.database:
        raise InvalidSetting("runs are in PostgreSQL: give --database, or set KVSTITCH_DATABASE")
    table = RangeTable(settings.database, connections=1)
    table.start()
    try:
        runs = [run for run in table.runs() if given is None or run.input == normal(given)]
        return [(table.progress(run), table.errors(run.run_id)) for run in runs]
    finally:
        table.close()


def run_of(settings: Settings, model_folder: Path, order: Order) -> Run:
    """Return the run of a command: the same input for the same model and tiers is the same run."""
    settings, _ = calibrated(settings, model_folder)
    prompts = PromptBuilder(model_folder, settings)
    check(settings, prompts)
    found = normal(order.input)
    bucket: Any = settings  # whose settings are kvstitch-s3's
    parts: dict[str, Any] = {
        "input": found,
        "tenant": order.tenant,
        "collection": order.collection,
        "metadata": order.metadata,
        "model": fingerprint(str(model_folder), settings.quantize),
        "chunking": prompts.chunking().fingerprint,
        "embedder": [settings.embedder, settings.embedder_url, settings.embedder_revision],
        "system": prompts.system,
        "prefix_mode": prompts.prefix_mode,
        "codec": settings.codec,
        "loras": settings.precomputed_loras,
        "redis": _place(settings.redis_url),
        "s3": [bucket.s3_endpoint, bucket.s3_url],
        "write_tiers": settings.write_tiers,
    }
    if prompts.prefix_mode in CHUNK_PREFIX_MODES:
        parts["companions"] = settings.companions
        parts["primers"] = settings.primers
        parts["document_prefix"] = settings.document_prefix
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return Run(digest[:16], found, order.tenant, order.collection, order.metadata)


def _place(url: str) -> str:
    """Return a URL without user and password, which may change."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
