"""Where things are kept if nothing else is said."""

from __future__ import annotations

import os
from pathlib import Path


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/kvstitch`, by default ~/.local/share/kvstitch."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "kvstitch"


def default_model_cache() -> Path:
    """`$XDG_CACHE_HOME/kvstitch/models`, by default ~/.cache/kvstitch/models."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvstitch" / "models"


def demo_model() -> Path:
    """The embedded default model: `demo_model` in the installed `service` package."""
    return Path(__file__).parents[1] / "demo_model"
