"""Kinds of fields that several settings share, secrets among them, and default folders."""

import os
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel
from pydantic.config import JsonDict

SCOPES: Final = ("generate", "ingest", "admin", "share", "metrics", "audit")
SHARE: Final = "share"  # to take readers and writers away
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


def named_folders(value: str) -> dict[str, Path]:
    """Return the folders of NAME=FOLDER, by commas, by their names."""
    pairs = [part.partition("=") for part in parts(value)]
    return {name.strip(): Path(folder.strip()).expanduser() for name, _, folder in pairs}


def _url(*schemes: str) -> AfterValidator:
    def check(value: str) -> str:
        if value and not value.startswith(schemes):
            raise ValueError(f"must start with {', '.join(schemes)}")
        return value

    return AfterValidator(check)


# URLs, or empty.
HttpUrl = Annotated[str, _url("http://", "https://")]
PostgresUrl = Annotated[str, _url("postgresql://", "postgres://")]
RedisUrl = Annotated[
    str, _url("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")
]

IS_SET: Final = "…"
ADDRESS: Final[JsonDict] = {"address": True}
"""`json_schema_extra` of a secret setting that is an address, which may hold a password."""


def hidden(settings: type[BaseModel]) -> frozenset[str]:
    """Return the names of settings that hold secrets."""
    return frozenset(name for name, field in settings.model_fields.items() if not field.repr)


def is_address(name: str, settings: type[BaseModel]) -> bool:
    extra = settings.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and extra.get("address") is True


def is_secret(name: str, value: str, settings: type[BaseModel]) -> bool:
    """Return whether nobody may see the value of a setting: an address only with a password."""
    return name in hidden(settings) and (not is_address(name, settings) or "@" in value)


def masked(name: str, value: str, settings: type[BaseModel]) -> str:
    """Return the value of a setting as people may see it: of an address scheme and host."""
    if name not in hidden(settings) or not value:
        return value
    if not is_address(name, settings):
        return IS_SET
    try:
        url = urlsplit(value)
    except ValueError:
        return IS_SET
    if not url.netloc:
        return IS_SET
    user, at, host = url.netloc.rpartition("@")
    rest = url.path.strip("/") or url.query or url.fragment
    return f"{url.scheme}://{IS_SET if user else ''}{at}{host}{'/' + IS_SET if rest else ''}"
