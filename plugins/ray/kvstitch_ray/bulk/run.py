"""One `kvstitch bulk`: cut the input, drive Ray, and tell how far it is."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvstitch.service.errors import DatabaseUnavailable, InvalidSetting, ModelRefused
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.models import prepare_model
from kvstitch.service.prompt import CHUNK_PREFIX_MODES
from kvstitch.service.settings import Settings
from kvstitch.service.settings.calibration import calibrated
from kvstitch.service.shared.model_fingerprint import fingerprint
from kvstitch_ray.bulk.corpus import check
from kvstitch_ray.bulk.range_table import RangeTable
from kvstitch_ray.bulk.ranges import cut
from kvstitch_ray.bulk.records import Order, Progress, Run
from kvstitch_ray.bulk.sources import normal, source

logger = logging.getLogger(__name__)
POLL_S = 0.5  # while others work on what is left
MAX_BLOCKS = 10_000  # Ray's tasks; each has some numbers
OBJECT_STORE_BYTES = 100 << 20  # of a Ray that is started here: it holds numbers and counts
NO_RAY = "bulk needs Ray: pip install 'kvstitch[ray]'"


def require_ray() -> Any:
    """Return the package."""
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data  # noqa: F401
    except ImportError as error:
        raise InvalidSetting(NO_RAY) from error
    return ray


def drive(
    settings: Settings, run: Run, table: RangeTable, order: Order
) -> Iterator[dict[str, Any]]:
    """Have all ranges of a run done, here or by another driver."""
    ray = require_ray()
    started = not ray.is_initialized()
    if started:
        _connect(ray, order)
    try:
        # Ray prints to standard output when a node is lost, whatever its logging settings say.
        with redirect_stdout(sys.stderr):
            while True:
                numbers = table.free(run.run_id)
                if numbers:
                    yield from _pass(ray, settings, run, numbers, order)
                elif table.progress(run).ended:
                    return
                else:
                    time.sleep(POLL_S)  # others work on the rest, or have fallen silent
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, order: Order) -> None:
    environment = {name: value for name in ("PYTHONPATH",) if (value := os.environ.get(name))}
    options: dict[str, Any] = {
        "runtime_env": {"env_vars": environment} if environment else None,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if order.ray_address or os.environ.get("RAY_ADDRESS"):
        options["address"] = order.ray_address or None
    else:
        # Ray would take the cores of the machine for the number of actors that may be.
        cores = max(os.cpu_count() or 1, int(order.workers * order.cpus) + 1)
        options |= {
            "address": "local",
            "num_cpus": cores,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    try:
        ray.init(**options)
    except Exception as error:
        raise InvalidSetting(f"Ray cannot be used: {error}") from error


def _pass(
    ray: Any, settings: Settings, run: Run, numbers: list[int], order: Order
) -> Iterator[dict[str, Any]]:
    """Give the ranges that are free now to Ray Data, and yield what comes back."""
    from kvstitch_ray.bulk.actor import RangeActor

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = [{"number": number} for number in numbers]
    results = ray.data.from_items(rows, override_num_blocks=min(len(rows), MAX_BLOCKS)).map_batches(
        RangeActor,
        fn_constructor_args=(settings.model_dump(mode="json"), run),
        fn_constructor_kwargs={
            "input_endpoint": order.input_endpoint,
            "input_region": order.input_region,
        },
        batch_size=1,
        concurrency=min(order.workers, len(numbers)),
        num_gpus=order.gpus or None,
        num_cpus=order.cpus,
    )
    try:
        for row in results.iter_rows():
            if row["outcome"] == "refused":
                raise ModelRefused(row["reason"])
            yield row
    except ray.exceptions.RayError as error:
        # Actors died more often than Ray starts them again: others may take what is left.
        logger.warning("Ray gave up a pass: %s", error)
        time.sleep(POLL_S)


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
