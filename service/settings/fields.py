"""Kinds of fields that several settings share, and where things are kept if nothing is said."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

SCOPES: Final = ("generate", "ingest", "admin", "metrics", "audit")
"""What an API key or a token may do (docs/api-admin.md#keys)."""


def default_data_dir() -> Path:
    """Return `$XDG_DATA_HOME/kvstitch`, by default ~/.local/share/kvstitch."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "kvstitch"


def default_model_cache() -> Path:
    """Return `$XDG_CACHE_HOME/kvstitch/models`, by default ~/.cache/kvstitch/models."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvstitch" / "models"


def demo_model() -> Path:
    """Return the embedded default model: `demo_model` in the installed `service` package."""
    return Path(__file__).parents[1] / "demo_model"


def parts(value: str) -> list[str]:
    """Return what stands between the commas, without blanks."""
    return [part for part in map(str.strip, value.split(",")) if part]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def named_folders(value: str) -> dict[str, Path]:
    """Return the folders of NAME=FOLDER, by commas, by their names."""
    pairs = [part.partition("=") for part in parts(value)]
    return {name.strip(): Path(folder.strip()).expanduser() for name, _, folder in pairs}


REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")


def _http_scheme(value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return value


HttpUrl = Annotated[str, AfterValidator(_http_scheme)]
"""Of an HTTP server, or empty."""
