"""Checks the model folder: family, RoPE, tokenizer, prompt format, weights, memory for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from service.cli.checks import architecture
from service.cli.checks.finding import Finding, fail, ok, warn
from service.cli.checks.memory import available_bytes
from service.cli.output import size
from service.errors import KvstitchError
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.models.conversion_process import needed_bytes
from service.models.gguf_header import read_header
from service.models.gguf_support import check as check_gguf
from service.models.gguf_support import quantisation
from service.models.model_argument import gguf_file, is_gguf
from service.models.model_finder import ModelFinder
from service.settings import Settings
from service.shared.worker_settings import MIB
from service.worker.model.folder_checks import read_config, weights_fault


def check(settings: Settings) -> Iterator[Finding]:
    """Check the model; one that is not on this machine is not downloaded, nor converted."""
    finder = ModelFinder.of(settings)
    try:
        folder = finder.find(settings.model)
        if folder is None:
            yield _unprepared(settings.model, finder)
            return
        config = read_config(folder)
    except KvstitchError as error:
        yield fail("model", error.message, "give another --model")
        return
    except (ValueError, OSError) as error:
        yield fail("model", f"config.json cannot be read: {error}", "copy the model folder again")
        return
    found = list(architecture.check(folder, config, settings))
    yield from found
    if any(finding.level == "fail" for finding in found):
        return
    yield from _prompts(folder, settings)
    yield from _weights(folder, settings)


def _unprepared(model: str, finder: ModelFinder) -> Finding:
    """What is known of a model that is no folder yet.

    Raises:
        ModelRefused: It is a .gguf file that cannot be served.
    """
    if not is_gguf(model):
        return warn("model", f"{model} is not on this machine, so it was not looked at",
                    f"`kvstitch serve` downloads it, and `kvstitch model fetch {model}` does so "
                    "beforehand")  # fmt: skip
    header = read_header(gguf_file(model))
    check_gguf(header)
    kind, room = quantisation(header), size(needed_bytes(header, finder.written_dtype))
    return warn("model", f"{header.path.name}: {header.architecture} in {kind}, not converted yet",
                f"`kvstitch serve` does it once; it takes {room} in {finder.cache}")  # fmt: skip


def unloadable(folder: Path, settings: Settings) -> Finding | None:
    """What makes it useless to load the weights, None if nothing does. Reads none of them."""
    return next((f for f in _weights(folder, settings) if f.level == "fail"), None)


def _prompts(folder: Path, settings: Settings) -> Iterator[Finding]:
    try:
        prompts = PromptBuilder(folder, settings)
    except KvstitchError as error:
        yield fail("tokenizer", error.message, "copy the model folder again, or mend the file")
        return
    fmt = prompts.format
    yield ok("tokenizer", f"chunks of {fmt.chunk_tokens} tokens, {fmt.top_k} per answer, prefix "
             f"mode {fmt.prefix_mode}")  # fmt: skip


def _weights(folder: Path, settings: Settings) -> Iterator[Finding]:
    if settings.worker_addresses:
        yield ok("weights", "loaded by workers that run by themselves")
        return
    if fault := weights_fault(folder):
        yield fail("weights", fault.problem, fault.remedy)
        return
    files = sorted(folder.glob("*.safetensors"))
    total = sum(file.stat().st_size for file in files)
    need = settings.workers * total + settings.memory_tier_mib * MIB
    free = available_bytes()
    if settings.device.startswith("cuda") or free is None or need <= free:
        yield ok("weights", f"{size(total)}, whole")
    else:
        yield warn(
            "weights",
            f"weights and memory tier may take {size(need)}, and {size(free)} of memory is free",
            "on a CPU: lower --memory-tier-mib or --workers, or take a smaller model",
        )
