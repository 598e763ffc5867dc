"""Fetches the real language model through the command line, or says why it cannot be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODEL = "smollm2"
FETCH_SECONDS = 240.0


class ModelMissing(RuntimeError):
    """The model could not be fetched or prepared; the message is the command's own."""


def fetch(model: str = MODEL) -> Path:
    """The model's folder, after downloading and converting it if need be.

    What the command says while it works goes to standard error.

    Raises:
        ModelMissing: There is no network, no package index or no such file, or it took too long.
    """
    command = [sys.executable, "-m", "service.cli", "model", "fetch", model]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelMissing(f"{model} was not there after {FETCH_SECONDS:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ModelMissing(said[-1] if said else f"{model} could not be fetched")
    return Path(done.stdout.strip().splitlines()[-1])
