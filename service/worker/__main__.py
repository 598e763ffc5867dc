"""`python -m service.worker`: read settings, build the parts, check the model, serve.

The first line of standard input is WorkerSettings as JSON (not an argument: it may hold the Redis
password and the tenant secret, which a process list would show).

Exit code 3: the model was refused (the last line of stderr says why); a supervisor must not retry.
The process ends when its standard input closes, so it never outlives the gateway that spawned it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from kvstore import MemoryTier, RedisTier, SsdTier, TieredStore
from kvstore.tiers.base import Tier
from service import messages as m
from service.errors import KvstitchError
from service.tracing import tracing
from service.worker.checks.gate import GateSettings
from service.worker.core.model_facts import read_calibration
from service.worker.engine.engine import Engine
from service.worker.forward import selfcheck
from service.worker.gate.policy import Bounds
from service.worker.kernels.cpu.shared_library import missing_kernels
from service.worker.loading.loader import Loader
from service.worker.methods.registry import (
    add_folder,
    describe,
    eviction_methods,
    fusion_methods,
)
from service.worker.model.addressing import Addressing
from service.worker.model.load import default_pool_tokens, fingerprint, load
from service.worker.server.link import Link
from service.worker.server.server import Server, set_threads
from service.worker_settings import WorkerSettings

log = logging.getLogger("kvstitch.worker")

REFUSED = 3


def main() -> int:
    argparse.ArgumentParser(prog="python -m service.worker", description=__doc__).parse_args()
    try:
        settings = WorkerSettings.from_json(sys.stdin.readline())
    except (ValueError, TypeError) as error:
        print(f"the first line of input is not WorkerSettings as JSON: {error}", file=sys.stderr)
        return REFUSED
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        return serve(settings)
    except KvstitchError as error:
        print(error.message, file=sys.stderr)
        return REFUSED


def serve(settings: WorkerSettings) -> int:
    """Serve until a signal, a Shutdown or the end of standard input."""
    set_threads(settings.threads)
    if settings.methods_dir:
        add_folder(Path(settings.methods_dir))
    adapter = load(settings.model, dtype=settings.dtype, device=settings.device)
    differences = selfcheck.check(adapter)
    log.info("start-up check passed: %.1g to transformers, %.1g stitched", *differences)
    if adapter.device.type == "cpu" and (absent := missing_kernels()):
        log.info("not built or not for this CPU, so done by torch: %s", ", ".join(absent))
    mark = fingerprint(settings.model)
    facts = read_calibration(
        Path(settings.model),
        layers=adapter.layers,
        heads=adapter.heads,
        kv_heads=adapter.kv_heads,
    )
    addressing = Addressing(
        adapter,
        fingerprint=mark,
        codec=settings.codec,
        secret=bytes.fromhex(settings.tenant_secret),
        tenants_secret=bytes.fromhex(settings.tenants_secret),
    )
    server: list[Server] = []

    def call(what: Callable[[Server], None]) -> None:
        for one in server:
            what(one)

    on_gpu = adapter.device.type == "cuda"
    with TieredStore(tiers(settings, pin=on_gpu)) as store:
        loader = Loader(
            store,
            threads=settings.loader_threads,
            on_ready=lambda: call(Server.wake),
            decode=not on_gpu,
        )
        engine = Engine(
            adapter,
            addressing,
            store,
            loader,
            facts=facts,
            pool_tokens=settings.pool_tokens or default_pool_tokens(adapter, settings.max_running),
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            planner=settings.planner,
            checks=checks(settings),
        )
        ready = m.Ready(
            model=m.ModelInfo(
                name=settings.model_name or os.path.basename(os.path.normpath(settings.model)),
                fingerprint=mark,
                family=adapter.family,
                layers=adapter.layers,
                kv_heads=adapter.kv_heads,
                head_dim=adapter.head_dim,
                dtype=str(adapter.dtype).removeprefix("torch."),
                max_context=min(adapter.max_context, engine.pool.tokens),
                kv_bytes_per_token=adapter.kv_bytes_per_token,
                codec=settings.codec,
                device=str(adapter.device),
            ),
            fusion=describe(fusion_methods(), facts),
            eviction=describe(eviction_methods(), facts),
            pool_tokens=engine.pool.tokens,
        )
        link = Link(settings.address, lambda who, payload: server[0].received(who, payload))
        traces = tracing(settings.otlp_endpoint, "worker")
        server.append(Server(engine, store, loader, ready, link, traces))
        traces.start()
        loader.start()
        link.start()
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: server[0].stop())
        threading.Thread(target=_watch_stdin, args=(server[0],), daemon=True).start()
        log.info("serving %s at %s", settings.model, settings.address)
        try:
            server[0].run()
        finally:
            link.close()
            loader.close()
            traces.close()
    return 0


def checks(settings: WorkerSettings) -> GateSettings | None:
    """How answers are held against full prefill's, if they are."""
    if not settings.gate_sample:
        return None
    bounds = Bounds(
        settings.gate_window,
        settings.gate_min_checks,
        settings.gate_min_agreement,
        settings.gate_max_kl,
        settings.gate_recovery,
    )
    return GateSettings(settings.gate_sample, bounds)


def tiers(settings: WorkerSettings, *, pin: bool = False) -> list[Tier]:
    """Fastest first: memory where it has bytes, SSD where a folder is set, Redis where a URL is.
    pin: read into memory that a GPU copies from by itself."""
    chosen: list[Tier] = []
    if settings.memory_tier_bytes:
        chosen.append(MemoryTier(settings.memory_tier_bytes))
    if settings.kv_dir:
        chosen.append(SsdTier(settings.kv_dir, settings.ssd_tier_bytes, pin=pin))
    if settings.redis_url:
        chosen.append(RedisTier(settings.redis_url, ttl_s=settings.redis_ttl_s or None, pin=pin))
    return chosen


def _watch_stdin(server: Server) -> None:
    """The gateway holds our standard input open for as long as it lives."""
    while os.read(0, 4096):
        pass
    server.stop()


if __name__ == "__main__":
    sys.exit(main())
