"""Checks calibration.json: whether `kvstitch tune` was run for this model, and what it decides."""

from __future__ import annotations

import json
from collections.abc import Iterator

from service.cli.checks.finding import Finding, fail, ok, warn
from service.errors import InvalidSetting, KvstitchError
from service.models.model_finder import ModelFinder
from service.settings import Settings, calibration
from service.shared import model_fingerprint


def check(settings: Settings) -> Iterator[Finding]:
    """Check the calibration that `serve` would use; nothing without a model to use it for."""
    try:
        folder = ModelFinder.of(settings).find(settings.model)
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
        return
    yield ok("defaults", f"built in: fusion {json.dumps(calibration.BUILT_IN_FUSION)}; `kvstitch "
             "tune` measures what suits model and documents")  # fmt: skip
