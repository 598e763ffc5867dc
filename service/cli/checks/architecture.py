"""Checks a model's config.json: family, RoPE, windows, context. Reads no other file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.cli.checks.finding import Finding, fail, ok
from service.settings import Settings, demo_model
from service.worker.model.folder_checks import facts, family_fault, read_config, rope_fault
from service.worker.model.quantisation import quantisation_fault


def check(folder: Path, config: dict[str, Any], settings: Settings) -> Iterator[Finding]:
    """Whether a model of this config.json can be served, and what is known of it."""
    fault = family_fault(folder, config) or rope_fault(folder, config)
    if fault := fault or quantisation_fault(
        folder, config, device=settings.device, quantize=settings.quantize
    ):
        yield fail("model", fault.problem, fault.remedy)
        return
    own = " (the demo model)" if folder == demo_model() else ""
    yield ok("model", f"{folder}{own}: {', '.join(facts(config))}")


def unservable(folder: Path, settings: Settings) -> Finding | None:
    """What makes it useless to look further, None if nothing does."""
    try:
        found = list(check(folder, read_config(folder), settings))
    except (ValueError, OSError) as error:
        return fail("model", f"{folder}/config.json cannot be read: {error}",
                    "copy the model folder again")  # fmt: skip
    return next((finding for finding in found if finding.level == "fail"), None)
