"""Gives the numbers of ranges to Ray Data's pool of actors until none is left."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

from kvstitch_ray.bulk.range_table import RangeTable
from kvstitch_ray.bulk.records import Order, Run
from service.errors import InvalidSetting, ModelRefused
from service.settings import Settings

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
