"""`kvstitch.toml`: where it is looked for, and what may be in it.

    redis_url = "redis://cache:6379/0"
    memory_tier_mib = 8192

Its names are those of the settings. One file is read, the first that is found: what `--config`
names, what KVSTITCH_CONFIG names, ./kvstitch.toml, /etc/kvstitch/kvstitch.toml.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_settings import BaseSettings, TomlConfigSettingsSource

from service.errors import InvalidSetting

FILE_NAME: Final = "kvstitch.toml"
VARIABLE: Final = "KVSTITCH_CONFIG"
SYSTEM_FILE: Final = Path("/etc/kvstitch") / FILE_NAME


def find_file(given: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the file that is to be read, None if there is none.

    Args:
        given: What the command line names.
        environment: Where KVSTITCH_CONFIG may be.

    Raises:
        InvalidSetting: The file that is named is not there.
    """
    for named, by in ((given, "--config"), (environment.get(VARIABLE), VARIABLE)):
        if named:
            path = Path(named).expanduser()
            if not path.exists() or path.is_dir():
                raise InvalidSetting(f"{by} names {path}, and there is no such file")
            return path
    return next((path for path in (Path(FILE_NAME), SYSTEM_FILE) if path.is_file()), None)


def read_file(path: Path, settings: type[BaseSettings]) -> TomlConfigSettingsSource:
    """Return what the file says; `toml_data` has it by the names of settings.

    Args:
        path: The file.
        settings: Whose fields may be in it.

    Raises:
        InvalidSetting: It cannot be read, is no TOML, or has names that are no settings; the
            message has one line for each of these.
    """
    try:
        found = TomlConfigSettingsSource(settings, toml_file=path)
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # UnicodeDecodeError, too
        raise InvalidSetting(f"{path} is not TOML: {error}") from None
    known = settings.model_fields
    unknown = {name: value for name, value in found.toml_data.items() if name not in known}
    if unknown:
        lines = [f"{path}: {_unknown(name, value, known)}" for name, value in unknown.items()]
        raise InvalidSetting("\n".join(lines))
    return found


def nearest(name: str, known: Collection[str]) -> str:
    """Return the name that was probably meant; "" if none is like it."""
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return near[0] if near else ""


def is_open(path: Path) -> bool:
    """Return whether other users than its owner and group can read the file."""
    return bool(os.stat(path).st_mode & 0o004)


def _unknown(name: str, value: Any, known: Collection[str]) -> str:
    if isinstance(value, dict):
        return f"[{name}] is a table: settings stand at the top, without one"
    meant = nearest(name.removeprefix("KVSTITCH_").removeprefix("kvstitch_"), known)
    return f"{name} is no setting" + (f": did you mean {meant}?" if meant else "")
