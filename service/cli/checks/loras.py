"""Checks the folders of LoRA adapters, as far as that goes without the model."""

from __future__ import annotations

from collections.abc import Iterator

from service.cli.checks.finding import Finding, fail, ok
from service.settings import Settings
from service.worker.model.lora_folder import LoraRefused, read_config, tensor_names


def check(settings: Settings) -> Iterator[Finding]:
    """One finding for each adapter that is set."""
    for name, folder in settings.loras.items():
        try:
            config, tensors = read_config(folder), tensor_names(folder)
        except LoraRefused as error:
            yield fail("lora", f"{name}: {error.fault.problem}", error.fault.remedy)
            continue
        modules = sorted({tensor.module.rpartition(".")[2] for tensor in tensors.values()})
        yield ok("lora", f"{name}: rank {config.rank}, {', '.join(modules)}, from {folder}")


def unservable(settings: Settings) -> Finding | None:
    """What makes it useless to load the model, None if nothing does."""
    return next((finding for finding in check(settings) if finding.level == "fail"), None)
