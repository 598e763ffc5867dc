"""Checks the model: config.json, tokenizer, weights, adapters, defaults, and with --deep a start.

Only the deep check loads torch, and only what is checked after config.json loads the gateway.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstitch.service.cli.output import size
from kvstitch.service.errors import InvalidSetting, KvstitchError
from kvstitch.service.models import find_model, source_of
from kvstitch.service.plugins import adapters, load_object
from kvstitch.service.settings import Settings, calibration, demo_model
from kvstitch.service.shared import model_fingerprint, resources
from kvstitch.service.shared.worker_settings import MIB
from kvstitch.service.worker.model.folder_checks import (
    FolderFault,
    config_fault,
    facts,
    kv_numbers_per_token,
    read_config,
    weights_fault,
)
from kvstitch.service.worker.model.supported import keeps_states
from kvstitch_doctor import Finding, fail, ok, warn


def _config(folder: Path, config: dict[str, Any], settings: Settings) -> Iterator[Finding]:
    """Whether a model of this config.json can be served, and what is known of it."""
    how = {"device": settings.device, "quantize": settings.quantize}
    if fault := config_fault(folder, config, **how):
        yield fail("model", fault.problem, fault.remedy)
        return
    own = " (the demo model)" if folder == demo_model() else ""
    yield ok("model", f"{folder}{own}: {', '.join(facts(config))}")


def check_model(settings: Settings) -> Iterator[Finding]:
    """Check the model; one that is not on this machine is not downloaded, nor converted."""
    try:
        folder = find_model(settings)
        if folder is None:
            yield _unprepared(settings)
            return
        config = read_config(folder)
    except KvstitchError as error:
        yield fail("model", error.message, "give another --model")
        return
    except (ValueError, OSError) as error:
        yield fail("model", f"config.json cannot be read: {error}", "copy the model folder again")
        return
    found = list(_config(folder, config, settings))
    yield from found
    if any(finding.level == "fail" for finding in found):
        return
    yield from _prompts(folder, settings)
    yield from _weights(folder, settings, config)


def _unprepared(settings: Settings) -> Finding:
    """Return what is known of a model that is no folder yet."""
    if source := source_of(settings):
        return warn("model", *source.describe())
    return warn("model", f"{settings.model} is not on this machine, so it was not looked at",
                f"`kvstitch serve` downloads it, and `kvstitch model fetch {settings.model}` does "
                "so beforehand")  # fmt: skip


def _prompts(folder: Path, settings: Settings) -> Iterator[Finding]:
    from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder

    try:
        prompts = PromptBuilder(folder, settings)
    except KvstitchError as error:
        yield fail("tokenizer", error.message, "copy the model folder again, or mend the file")
        return
    fmt = prompts.format
    yield ok("tokenizer", f"chunks of {fmt.chunk_tokens} tokens, {fmt.top_k} per answer, prefix "
             f"mode {fmt.prefix_mode}")  # fmt: skip


def _weights(folder: Path, settings: Settings, config: dict[str, Any]) -> Iterator[Finding]:
    if settings.worker_addresses:
        yield ok("weights", "loaded by workers that run by themselves")
        return
    if fault := weights_fault(folder):
        yield fail("weights", fault.problem, fault.remedy)
        return
    files = sorted(folder.glob("*.safetensors"))
    total = sum(file.stat().st_size for file in files)
    yield ok("weights", f"{size(total)}, whole")
    if not settings.device.startswith("cuda") and (free := resources.free_memory()) is not None:
        yield _memory(settings, settings.workers * total, config, free)


def _memory(settings: Settings, weights: int, config: dict[str, Any], free: int) -> Finding:
    """Compare what a start takes with what is free; the pool as the worker would choose it."""
    token = 2 * kv_numbers_per_token(config)  # of two bytes each
    most = settings.max_running * config.get("max_position_embeddings", free)
    tokens = settings.pool_tokens or min(most, max(0, free - weights) // 4 // max(1, token))
    parts = {"weights": weights, "KV pool": tokens * token,
             "memory tier": settings.memory_tier_mib * MIB}  # fmt: skip
    listed = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in parts.items())
    need = sum(parts.values())
    said = f"{listed}: {size(need)}, and {size(free)} is free"
    if need <= free:
        return ok("memory", said)
    return warn("memory", said, "lower --memory-tier-mib, KVSTITCH_POOL_TOKENS or --workers, or "
                "take a smaller model or --quantize int8")  # fmt: skip


def check_loras(settings: Settings) -> Iterator[Finding]:
    """Yield one finding for each adapter that is set."""
    for name, folder in settings.loras.items():
        try:
            found = load_object(adapters().examine)(folder)
        except InvalidSetting as error:
            yield fail("lora", error.message, "pip install kvstitch-lora")
            return
        if isinstance(found, FolderFault):
            yield fail("lora", f"{name}: {found.problem}", found.remedy)
        else:
            yield ok("lora", f"{name}: {found}, from {folder}")


def check_defaults(settings: Settings) -> Iterator[Finding]:
    """Check the calibration that `serve` would use; nothing without a model to use it for."""
    try:
        folder = find_model(settings)
    except KvstitchError:  # the check of the model has said why
        return
    if folder is None:
        return
    try:
        found = calibration.find(settings, folder)
    except InvalidSetting as error:
        yield fail("defaults", error.message, "run `kvstitch tune`, or leave --calibration out")
        return
    if found is not None:
        fusion, stored = json.dumps(found.defaults["fusion"]), found.settings(settings)
        yield ok("defaults", f"fusion {fusion}, prefix mode {stored.prefix_mode}, codec "
                 f"{stored.codec}, from {found.path}")  # fmt: skip
        return
    unused = settings.data_dir / model_fingerprint.CALIBRATION_FILE
    if settings.calibration != calibration.OFF and unused.is_file():
        yield warn("defaults", f"{unused} was made for another model, or is damaged: not used",
                   "run `kvstitch tune` for this model")  # fmt: skip
    else:
        stateful = _keeps_states(folder)
        fusion = json.dumps(
            calibration.STATEFUL_FUSION if stateful else calibration.BUILT_IN_FUSION
        )
        yield ok("defaults", f"built in: fusion {fusion}; `kvstitch tune` measures what suits "
                 "model and documents")  # fmt: skip


def _keeps_states(folder: Path) -> bool:
    try:
        return keeps_states(read_config(folder))
    except (ValueError, OSError):  # the check of the model has said why
        return False


def check_start(settings: Settings) -> Iterator[Finding]:
    """Do what a start would do: load the model and compare it with transformers; embed a text."""
    yield from _start_up(settings)
    yield _embedding(settings)


def _start_up(settings: Settings) -> Iterator[Finding]:
    from kvstitch.service.worker import api

    began = time.monotonic()
    try:
        folder = find_model(settings)
        if folder is None:
            yield warn("start-up check", f"{settings.model} is not prepared, so it was not loaded",
                       f"run `kvstitch model fetch {settings.model}` first")  # fmt: skip
            return
        api.set_threads(settings.threads)
        how = {"dtype": settings.dtype, "quantize": settings.quantize}
        adapter = api.load_model(str(folder), device=settings.device_of(0), **how)
        theirs, stitched = api.start_up_check(adapter)
        for name, lora in settings.loras.items():
            load_object(adapters().add)(adapter, name, lora)
    except KvstitchError as error:
        yield fail("start-up check", error.message, "it cannot be served as it is")
        return
    except Exception as error:
        if not api.lacks_memory(error):
            raise
        yield fail("start-up check", api.no_memory(), "then run it again")
        return
    dtype, took_s = str(adapter.dtype).removeprefix("torch."), time.monotonic() - began
    yield ok("start-up check", f"{adapter.family} in {dtype} on {adapter.device}: {theirs:.1g} to "
             f"transformers, {stitched:.1g} stitched, {took_s:.1f} s")  # fmt: skip
    reason = api.why_missing(adapter.device)
    said = [f"torch in their place: {reason}" if reason else "all"]
    if adapter.device.type == "cpu":
        said += (
            f"{what}: {1000 * kernel:.1f} ms by the kernel, {1000 * torchs:.1f} by torch"
            for what, (kernel, torchs) in api.cpu_choices().items()
        )
    yield ok("kernels", "; ".join(said))


def _embedding(settings: Settings) -> Finding:
    from kvstitch.retriever.errors import RetrieverError
    from kvstitch.service.gateway.search.async_retriever import make_embedder

    model = make_embedder(settings)
    try:
        model.start()
        dimensions = model.embed(["Is anybody there?"])[0].shape[1]
    except RetrieverError as error:
        return fail("embedding", str(error), "give another --embedder, or mend its endpoint")
    finally:
        model.close()
    return ok("embedding", f"a sentence became {dimensions} numbers")
