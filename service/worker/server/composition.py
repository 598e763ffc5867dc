"""Makes a worker of its settings: the model, the store's tiers, the engine, and its server."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kvstitch.encryption.keyring import Keyring
from kvstitch.kvstore import MemoryTier, RedisTier, SsdTier, TieredStore, chunk_file_bytes
from kvstitch.kvstore.tiers.base import Tier
from kvstitch.service import plugins
from kvstitch.service.errors import ModelRefused
from kvstitch.service.messages.replies import ModelInfo, Ready
from kvstitch.service.messages.wire import PROTOCOL
from kvstitch.service.shared.model_fingerprint import fingerprint
from kvstitch.service.shared.tracing import tracing_to
from kvstitch.service.shared.worker_settings import WorkerSettings
from kvstitch.service.worker.engine.engine import Engine, EngineOptions
from kvstitch.service.worker.forward import selfcheck
from kvstitch.service.worker.gate.correctness_gate import GateSettings
from kvstitch.service.worker.gate.policy import Bounds
from kvstitch.service.worker.kernels.device_kernels import why_missing
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.methods.registry import (
    add_folder,
    describe,
    eviction_methods,
    fusion_methods,
)
from kvstitch.service.worker.model.addressing import Addressing
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.load import default_pool_tokens, load, set_threads
from kvstitch.service.worker.model.model_facts import ModelFacts, read_calibration
from kvstitch.service.worker.sampling.grammar import Grammars
from kvstitch.service.worker.sequences.hand_over import HandOver
from kvstitch.service.worker.server.leases import Leases, take_number
from kvstitch.service.worker.server.link import Inbox, Link, ReplySender
from kvstitch.service.worker.server.reporter import CachedChunks, Reporter
from kvstitch.service.worker.server.worker_server import WorkerServer

log = logging.getLogger("kvstitch.worker")


def load_model(settings: WorkerSettings) -> DecoderModel:
    """Load and check the model and its LoRA adapters."""
    set_threads(settings.threads)
    if settings.methods_dir:
        add_folder(Path(settings.methods_dir))
    decoder = load(
        settings.model, dtype=settings.dtype, device=settings.device, quantize=settings.quantize
    )
    differences = selfcheck.check(decoder)
    log.info("start-up check passed: %.1g to transformers, %.1g stitched", *differences)
    if settings.loras and not decoder.takes_adapters:
        raise ModelRefused(
            f"LoRA adapters are not served with models of the family {decoder.family}: start "
            "without them, or with their weights merged into the model's",
            field="lora",
        )
    for name, folder in settings.loras.items():
        off, moved = plugins.load_object(plugins.adapters().add)(decoder, name, Path(folder))
        log.info("LoRA adapter %s: %.1g to transformers; it moves logits by %.1g", name, off, moved)
    return decoder


class Composition:
    """The parts of one worker; `opened` closes the store when it ends."""

    def __init__(self, settings: WorkerSettings, decoder: DecoderModel, opened: ExitStack) -> None:
        if reason := why_missing(decoder.device):
            log.warning("torch's slower operations are used instead of the kernels: %s", reason)
        model_fingerprint = fingerprint(settings.model, settings.quantize)
        facts = read_calibration(
            Path(settings.model),
            decoder.facts,
            Path(settings.calibration) if settings.calibration else None,
        )
        addressing = Addressing(
            decoder,
            fingerprint=model_fingerprint,
            codec=settings.codec,
            secret=bytes.fromhex(settings.tenant_secret),
            tenants_secret=bytes.fromhex(settings.tenants_secret),
        )
        on_gpu = decoder.device.type == "cuda"
        inbox, cached, leases = Inbox(), CachedChunks(), None
        if settings.shared:
            leases = Leases(Path(settings.kv_dir) if settings.kv_dir else None)
        keys = Keyring(active=False)  # until a gateway sends some
        store = open_store(settings, opened, pin=on_gpu, on_change=cached.changed, keys=keys)
        self._loader = Loader(
            store, threads=settings.loader_threads, on_ready=inbox.wake, decode=not on_gpu
        )
        self._grammars = Grammars(
            Path(settings.model) / "tokenizer.json", decoder.vocabulary, decoder.end_ids
        )
        hand_over: HandOver | None = plugins.hooks().hand_over(settings=settings)
        engine = Engine(
            decoder,
            addressing,
            self._loader,
            EngineOptions(
                pool_tokens=settings.pool_tokens
                or default_pool_tokens(decoder, settings.max_running, settings.workers),
                max_running=settings.max_running,
                max_waiting=settings.max_waiting,
                planner=settings.planner,
                sketches=settings.sketches,
                prefix_cache=settings.prefix_cache,
                draft_tokens=settings.draft_tokens,
                prefill_graphs=settings.prefill_graphs,
                checks=_gate_settings(settings),
                hand_over=hand_over and opened.enter_context(hand_over),
            ),
            facts=facts,
            grammars=self._grammars,
        )
        if settings.planner and not on_gpu and not decoder.mixers:
            engine.prefilling.timer.probe()
        ready = _ready(settings, decoder, facts, model_fingerprint, engine.pool.tokens)
        self.link = Link(settings.address, inbox.receive, settings.fleet_secret)
        self._traces = tracing_to(settings.otlp_endpoint, "worker")
        replies = ReplySender(self.link, self._traces)
        reporter = Reporter(engine, cached, ready, self.link)
        self._server = WorkerServer(engine, inbox, replies, reporter, leases, keys)

    @contextmanager
    def serving(self) -> Iterator[WorkerServer]:
        """Start what has threads; within it the server can run."""
        self._traces.start()
        self._loader.start()
        self.link.start()
        try:
            yield self._server
        finally:
            self.link.close()
            self._loader.close()
            self._grammars.close()
            self._traces.close()


TYPICAL_CHUNK = 400
"""Tokens of a chunk by which stored bytes are forecast until some are measured."""


def _ready(
    settings: WorkerSettings,
    decoder: DecoderModel,
    facts: ModelFacts,
    model_fingerprint: str,
    pool_tokens: int,
) -> Ready:
    """Describe the worker and its model for gateways."""
    addressing = Addressing(decoder, fingerprint=model_fingerprint, codec=settings.codec)
    typical = addressing.spec(TYPICAL_CHUNK)
    return Ready(
        model=ModelInfo(
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
            stored_bytes_per_token=chunk_file_bytes(typical) / TYPICAL_CHUNK,
        ),
        fusion=describe(fusion_methods(), facts),
        eviction=describe(eviction_methods(), facts),
        pool_tokens=pool_tokens,
        adapters=[each.info for each in decoder.loras.values()],
        protocol=PROTOCOL,
    )


def _gate_settings(settings: WorkerSettings) -> GateSettings | None:
    """Return settings of the correctness gate; None where it is switched off."""
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


def open_store(
    settings: WorkerSettings,
    opened: ExitStack,
    *,
    pin: bool,
    on_change: Callable[[str, bool], None],
    keys: Keyring,
) -> TieredStore:
    tiers = _tiers(settings, pin, on_change)
    wanted = settings.write_tiers.split(",") if settings.write_tiers else None
    written = [t.name for t in tiers if t.kind == "memory" or wanted is None or t.name in wanted]
    store = TieredStore(tiers, write_to=written, write_through=settings.write_through, keys=keys)
    return opened.enter_context(store)


FIRST_READ_S = {"memory": 0.0, "ssd": 1e-4, "redis": 5e-4}
"""About how long the first byte takes (seconds), of a server on this or a near machine."""


def _tiers(
    settings: WorkerSettings, pin: bool, on_change: Callable[[str, bool], None]
) -> list[Tier]:
    """Return the store's tiers, fastest first, of which memory takes every computed chunk."""
    chosen: list[Tier] = []
    if settings.memory_tier_bytes:
        chosen.append(MemoryTier(settings.memory_tier_bytes, on_change=on_change))
    if settings.kv_dir:
        # Answered prompts that an earlier release kept there: deletions would not reach them.
        shutil.rmtree(Path(settings.kv_dir) / ".prompts", ignore_errors=True)
        member = settings.number if settings.workers > 1 else None
        if settings.shared:
            member = take_number(Path(settings.kv_dir))
        chosen.append(SsdTier(settings.kv_dir, settings.ssd_tier_bytes, pin=pin, member=member))
    if settings.redis_url:
        chosen.append(RedisTier(settings.redis_url, ttl_s=settings.redis_ttl_s or None, pin=pin))
    of_plugins = [plugins.tiers()[name] for name in settings.plugin_tiers]
    chosen += [plugins.load_object(kind.make)(settings, pin) for kind in of_plugins]
    seconds = FIRST_READ_S | {kind.name: kind.first_read_s for kind in of_plugins}
    return sorted(chosen, key=lambda tier: seconds[tier.name])
