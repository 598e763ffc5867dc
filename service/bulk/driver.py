"""Gives the numbers of ranges to Ray Data's pool of actors until none is left."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from service.bulk.range_table import RangeTable
from service.bulk.records import Run
from service.errors import InvalidSetting, ModelRefused
from service.settings import Settings

logger = logging.getLogger(__name__)
POLL_S = 0.5  # while others work on what is left
MAX_BLOCKS = 10_000  # Ray's tasks; each has some numbers
OBJECT_STORE_BYTES = 100 << 20  # of a Ray that is started here: it holds numbers and counts
NO_RAY = "bulk needs Ray: pip install 'kvstitch[ray]'"


@dataclass(frozen=True)
class Pool:
    """The actors.

    Attributes:
        workers: How many.
        gpus: Of each.
        cpus: Of each.
        address: Of the Ray cluster; "": that of RAY_ADDRESS, else one is started on this machine.
        input_endpoint, input_region: As of `RangeActor`.
    """

    workers: int = 1
    gpus: float = 0.0
    cpus: float = 1.0
    address: str = ""
    input_endpoint: str = ""
    input_region: str = ""


def require_ray() -> Any:
    """The package.

    Raises:
        InvalidSetting: It is not installed.
    """
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data  # noqa: F401
    except ImportError as error:
        raise InvalidSetting(NO_RAY) from error
    return ray


def drive(
    settings: Settings,
    run: Run,
    table: RangeTable,
    pool: Pool,
    *,
    on_range: Callable[[dict[str, Any]], None] = lambda row: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Have all ranges of a run done, here or by another driver.

    Args:
        on_range: Called with what `RangeActor` returns of each range.
        stopped: Asked between ranges.

    Raises:
        InvalidSetting: Ray is missing or cannot be reached; or workers refuse the settings.
        ModelRefused: The model cannot be served.
    """
    ray = require_ray()
    started = not ray.is_initialized()
    if started:
        _connect(ray, pool)
    try:
        # Ray tells on standard output when a node is lost, whatever it was told about logs.
        with redirect_stdout(sys.stderr):
            _drive(ray, settings, run, table, pool, on_range=on_range, stopped=stopped)
    finally:
        if started:
            ray.shutdown()


def _drive(
    ray: Any,
    settings: Settings,
    run: Run,
    table: RangeTable,
    pool: Pool,
    *,
    on_range: Callable[[dict[str, Any]], None],
    stopped: Callable[[], bool],
) -> None:
    while not stopped():
        numbers = table.free(run.run_id)
        if not numbers:
            if table.standing(run).ended:
                return
            time.sleep(POLL_S)  # others work on the rest, or have fallen silent
            continue
        rows = _results(ray, settings, run, numbers, pool)
        _consume(ray, rows, on_range, stopped)


def _connect(ray: Any, pool: Pool) -> None:
    environment = {name: value for name in ("PYTHONPATH",) if (value := os.environ.get(name))}
    options: dict[str, Any] = {
        "runtime_env": {"env_vars": environment} if environment else None,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if pool.address or os.environ.get("RAY_ADDRESS"):
        options["address"] = pool.address or None
    else:
        # Ray would take the cores of the machine for the number of actors that may be.
        cores = max(os.cpu_count() or 1, int(pool.workers * pool.cpus) + 1)
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


def _results(ray: Any, settings: Settings, run: Run, numbers: list[int], pool: Pool) -> Any:
    """What Ray Data makes of the ranges that are free now; computed as it is read."""
    from service.bulk.actor import RangeActor

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = [{"number": number} for number in numbers]
    workers = min(pool.workers, len(numbers))
    numbered = ray.data.from_items(rows, override_num_blocks=min(len(rows), MAX_BLOCKS))
    return numbered.map_batches(
        RangeActor,
        fn_constructor_args=(settings.model_dump(mode="json"), run),
        fn_constructor_kwargs={
            "input_endpoint": pool.input_endpoint,
            "input_region": pool.input_region,
        },
        batch_size=1,
        concurrency=workers,
        num_gpus=pool.gpus or None,
        num_cpus=pool.cpus,
    )


def _consume(
    ray: Any,
    results: Any,
    on_range: Callable[[dict[str, Any]], None],
    stopped: Callable[[], bool],
) -> None:
    try:
        for row in results.iter_rows():
            on_range(row)
            if row["outcome"] == "refused":
                raise ModelRefused(row["reason"])
            if stopped():
                return
    except ray.exceptions.RayError as error:
        # Actors died more often than Ray starts them again: what is left is free after the lease.
        logger.warning("Ray gave up a pass: %s", error)
        time.sleep(POLL_S)
