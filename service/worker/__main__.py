"""`python -m service.worker`: reads settings, builds the parts, checks the model, serves.

The first line of standard input is WorkerSettings as JSON. It is not an argument because it may
hold the Redis password and the tenant secret, which a process list would show.

Exit code 3 means that the model or the settings were refused: the last line of stderr says why, and
a supervisor must not retry. The process ends when its standard input closes, so it never outlives
the gateway that started it.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from kvstore import (
    MemoryTier,
    RedisTier,
    S3Place,
    S3Tier,
    SsdTier,
    TieredStore,
    TierError,
    TierUnavailable,
)
from kvstore.tiers.base import Tier
from service.errors import KvstitchError
from service.messages.replies import LoraInfo, ModelInfo, Ready
from service.messages.wire import PROTOCOL
from service.shared.model_fingerprint import fingerprint
from service.shared.tracing import Tracing
from service.shared.worker_settings import WorkerSettings
from service.worker.engine.engine import Engine
from service.worker.forward import selfcheck
from service.worker.gate.correctness_gate import GateSettings
from service.worker.gate.policy import Bounds
from service.worker.kernels.cpu.native import why_missing
from service.worker.kv.pool import KVPool
from service.worker.loading.loader import Loader
from service.worker.methods.registry import (
    add_folder,
    describe,
    eviction_methods,
    fusion_methods,
)
from service.worker.model.addressing import Addressing
from service.worker.model.decoder import DecoderModel
from service.worker.model.load import default_pool_tokens, load, set_threads
from service.worker.model.model_facts import read_calibration
from service.worker.prefix_cache.on_disk import PromptsOnDisk
from service.worker.sampling.grammar import Grammars
from service.worker.server.cached_chunks import CachedChunks
from service.worker.server.leases import Leases, take_number
from service.worker.server.link import Inbox, Link
from service.worker.server.worker_server import WorkerServer

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
    except TierUnavailable:  # the folder is in use, perhaps only until its last owner has ended
        raise
    except TierError as error:
        print(error, file=sys.stderr)
        return REFUSED


def serve(settings: WorkerSettings) -> int:
    """Serves until a signal, a Shutdown message or the end of standard input.

    Returns:
        The process's exit code.

    Raises:
        KvstitchError: the worker cannot be started with these settings.
    """
    with ExitStack() as stack:
        return _serve(settings, *_load(settings, stack))


def _load(settings: WorkerSettings, stack: ExitStack) -> tuple[DecoderModel, Callable[..., KVPool]]:
    """Loads and checks the model and its LoRA adapters.

    Args:
        stack: ends the processes that have parts of it.

    Returns:
        The decoder, and what makes the KV pool.
    """
    make_pool: Callable[..., KVPool] = KVPool
    lora_logits: Mapping[str, tuple[Tensor, Tensor]] = {}
    if settings.tensor_parallel > 1:
        from service.worker.parallel.processes import TensorParallel, refuse

        refuse(settings)
        ranks = stack.enter_context(
            TensorParallel(settings.tensor_parallel, device=settings.device, on_end=_end_at_once)
        )
        make_pool = ranks.make_pool
        decoder, differences = ranks.load(
            settings.model,
            dtype=settings.dtype,
            threads=settings.threads,
            quantize=settings.quantize,
            loras=settings.loras,
        )
        lora_logits = ranks.lora_logits
    else:
        set_threads(settings.threads)
        if settings.methods_dir:
            add_folder(Path(settings.methods_dir))
        decoder = load(
            settings.model,
            dtype=settings.dtype,
            device=settings.device,
            quantize=settings.quantize,
        )
        differences = selfcheck.check(decoder)
    log.info("start-up check passed: %.1g to transformers, %.1g stitched", *differences)
    for name, folder in settings.loras.items():
        off, moved = selfcheck.add_lora(decoder, name, Path(folder), lora_logits.get(name))
        log.info("LoRA adapter %s: %.1g to transformers; it moves logits by %.1g", name, off, moved)
    return decoder, make_pool


def _serve(
    settings: WorkerSettings, decoder: DecoderModel, make_pool: Callable[..., KVPool]
) -> int:
    if decoder.device.type == "cpu" and (reason := why_missing()):
        log.warning("torch's slower operations are used instead of the kernels: %s", reason)
    model_fingerprint = fingerprint(settings.model, settings.quantize)
    facts = read_calibration(
        Path(settings.model),
        layers=decoder.layers,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        first=Path(settings.calibration) if settings.calibration else None,
        ranks=settings.tensor_parallel,
    )
    addressing = Addressing(
        decoder,
        fingerprint=model_fingerprint,
        codec=settings.codec,
        secret=bytes.fromhex(settings.tenant_secret),
        tenants_secret=bytes.fromhex(settings.tenants_secret),
    )
    on_gpu = decoder.device.type == "cuda"
    inbox = Inbox()
    cached = CachedChunks()
    leases = Leases(Path(settings.kv_dir) if settings.kv_dir else None) if settings.shared else None
    with ExitStack() as opened:
        chosen = tiers(settings, pin=on_gpu, on_change=cached.changed)
        store = opened.enter_context(
            TieredStore(
                chosen,
                write_to=_written(settings, chosen),
                write_through=settings.write_through,
            )
        )
        prompts = None
        # Stored prompts have all heads, and the pool here may have some.
        stores = settings.prefix_cache and settings.tensor_parallel == 1
        if settings.prompts_dir and not (settings.prompts_bytes and stores):
            # Of an earlier start with other settings: deletions would not reach them.
            shutil.rmtree(settings.prompts_dir, ignore_errors=True)
        elif settings.prompts_dir:
            tier = SsdTier(settings.prompts_dir, settings.prompts_bytes, pin=on_gpu, name="prompts")
            prompts = opened.enter_context(PromptsOnDisk(tier, addressing, on_ready=inbox.wake))
        loader = Loader(
            store, threads=settings.loader_threads, on_ready=inbox.wake, decode=not on_gpu
        )
        engine = Engine(
            decoder,
            addressing,
            store,
            loader,
            facts=facts,
            pool_tokens=settings.pool_tokens
            or default_pool_tokens(decoder, settings.max_running, settings.workers),
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            planner=settings.planner,
            sketches=settings.sketches,
            prefix_cache=settings.prefix_cache,
            prompts=prompts,
            draft_tokens=settings.draft_tokens,
            checks=gate_settings(settings),
            grammars=Grammars(
                Path(settings.model) / "tokenizer.json", decoder.vocabulary, decoder.end_ids
            ),
            make_pool=make_pool,
        )
        ready = Ready(
            model=model_info(settings, decoder, model_fingerprint, engine.pool.tokens),
            fusion=describe(fusion_methods(), facts),
            eviction=describe(eviction_methods(), facts),
            pool_tokens=engine.pool.tokens,
            adapters=[
                LoraInfo(each.name, each.fingerprint, each.rank, list(each.modules))
                for each in decoder.loras.values()
            ],
            protocol=PROTOCOL,
        )
        link = Link(settings.address, inbox.receive, settings.fleet_secret)
        traces = Tracing(settings.otlp_endpoint, "worker")
        server = WorkerServer(
            engine,
            store,
            loader,
            cached=cached,
            ready=ready,
            link=link,
            inbox=inbox,
            tracing=traces,
            leases=leases,
        )
        traces.start()
        loader.start()
        link.start()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, lambda *_: server.drain())
        threading.Thread(target=_stop_with_stdin, args=(server,), daemon=True).start()
        log.info("serving %s at %s", settings.model, link.address)
        try:
            server.run()
        finally:
            link.close()
            loader.close()
            traces.close()
    return 0


def model_info(
    settings: WorkerSettings, decoder: DecoderModel, model_fingerprint: str, pool_tokens: int
) -> ModelInfo:
    """What gateways are told of the model."""
    return ModelInfo(
        name=settings.model_name or os.path.basename(os.path.normpath(settings.model)),
        fingerprint=model_fingerprint,
        family=decoder.family,
        layers=decoder.layers,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        dtype=str(decoder.dtype).removeprefix("torch."),
        max_context=min(decoder.max_context, pool_tokens),
        kv_bytes_per_token=decoder.kv_bytes_per_token,
        codec=settings.codec,
        device=str(decoder.device),
    )


def gate_settings(settings: WorkerSettings) -> GateSettings | None:
    """Settings of the correctness gate; None where it is switched off."""
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


def tiers(
    settings: WorkerSettings,
    *,
    pin: bool = False,
    on_change: Callable[[str, bool], None] | None = None,
) -> list[Tier]:
    """The store's tiers, fastest first.

    Args:
        settings: memory is used where it has bytes, SSD where a folder is set, Redis and S3
            where a URL is set.
        pin: whether to read into pinned memory, from which a GPU copies asynchronously.
        on_change: told of every chunk that the memory tier takes or gives up.
    """
    chosen: list[Tier] = []
    if settings.memory_tier_bytes:
        chosen.append(MemoryTier(settings.memory_tier_bytes, on_change=on_change))
    if settings.kv_dir:
        member = settings.number if settings.workers > 1 else None
        if settings.shared:
            member = take_number(Path(settings.kv_dir))
        chosen.append(SsdTier(settings.kv_dir, settings.ssd_tier_bytes, pin=pin, member=member))
    if settings.redis_url:
        chosen.append(RedisTier(settings.redis_url, ttl_s=settings.redis_ttl_s or None, pin=pin))
    if settings.s3_url:
        place = S3Place(settings.s3_url, settings.s3_endpoint, settings.s3_region)
        chosen.append(S3Tier(place, pin=pin))
    return chosen


def _end_at_once(why: str) -> None:
    """Ends this process, whose threads may wait for another rank for ever; it is started again."""
    log.critical("the worker ends, to start again: %s", why)
    os._exit(1)


def _written(settings: WorkerSettings, chosen: list[Tier]) -> list[str]:
    """Names of the tiers that get computed chunks; memory always does."""
    names = settings.write_tiers.split(",") if settings.write_tiers else None
    return [
        tier.name for tier in chosen if tier.kind == "memory" or names is None or tier.name in names
    ]


def _stop_with_stdin(server: WorkerServer) -> None:
    """Waits for the end of standard input, which the gateway holds open for as long as it lives."""
    while os.read(0, 4096):
        pass
    server.stop()


if __name__ == "__main__":
    sys.exit(main())
