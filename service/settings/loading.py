"""Reads the settings, explains what is wrong with them, and says where each value comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from service.errors import InvalidSetting
from service.plugins import VARIABLE as PLUGINS_VARIABLE
from service.plugins import hooks
from service.settings.config_file import VARIABLE, find_file, nearest, read_file
from service.settings.secrets import IS_SET, hidden, is_address
from service.settings.settings import FILE, PREFIX, Settings


@cache
def all_settings() -> type[Settings]:
    """Return `Settings` with the fields that plugins declare."""
    declared = tuple(hooks().settings())
    return create_model("Settings", __base__=(*declared, Settings)) if declared else Settings


def load(config: str | Path | None = None, /, **overrides: Any) -> Settings:
    """Read the settings from options, the environment and the file.

    Args:
        config: The file; None: as config_file.py says.
        **overrides: Take precedence if they are not None.

    Raises:
        InvalidSetting: Some values are wrong; the message has one line for each.
    """
    file = find_file(config, os.environ)
    source = None if file is None else read_file(file, all_settings())
    given = {name: value for name, value in overrides.items() if value is not None}
    _require_plugins(os.environ)
    reset = FILE.set(source)
    try:
        return all_settings()(**given)
    except ValidationError as error:
        in_file = {} if source is None else source.toml_data
        came_from = sources(given, os.environ, in_file, file)
        raise InvalidSetting(
            "\n".join(_explain(fault, came_from) for fault in error.errors())
        ) from None
    finally:
        FILE.reset(reset)


def sources(
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    in_file: Mapping[str, Any],
    file: Path | None,
) -> dict[str, str]:
    """Return where the value of each setting comes from: `option`, a variable, a file, `default`.

    Args:
        given: By options.
        environment: Its names count whatever their case; an empty value is none.
        in_file: What the file says.
        file: Its path.
    """
    variables = {name.upper(): name for name, value in environment.items() if value}
    found = {}
    for name in all_settings().model_fields:
        if given.get(name) is not None:
            found[name] = "option"
        elif variable := variables.get(PREFIX + name.upper()):
            found[name] = variable
        else:
            found[name] = str(file) if name in in_file else "default"
    return found


# What clients and the command line read, and what Kubernetes sets beside a service of this name.
_OF_OTHERS = re.compile(
    rf"KVSTITCH_(URL|API_KEY|(\w+_)?SERVICE_(HOST|PORT)\w*|(\w+_)?PORT_\w+)|{VARIABLE}|{PLUGINS_VARIABLE}"
)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return what is to be said of variables with our prefix that are no settings, one by one."""
    said = []
    for name in sorted(environment):
        upper = name.upper()
        field = upper.removeprefix(PREFIX).lower()
        if not upper.startswith(PREFIX) or _OF_OTHERS.fullmatch(upper):
            continue
        known = all_settings().model_fields
        if field in known:
            continue
        near = nearest(field, known)
        meant = f": did you mean {PREFIX}{near.upper()}?" if near else ""
        said.append(f"{name} is no setting and has no effect{meant}")
    return said


# Settings by which something is protected, by the plugin without which nothing would be.
_NEVER_IGNORED = {
    "kvstitch-audit": re.compile(r"AUDIT(_\w+)?"),
    "kvstitch-oidc": re.compile(r"OIDC_\w+"),
}


def _require_plugins(environment: Mapping[str, str]) -> None:
    for variable, value in environment.items():
        name = variable.upper().removeprefix(PREFIX)
        if not value or name == variable.upper() or name.lower() in all_settings().model_fields:
            continue
        for plugin, names in _NEVER_IGNORED.items():
            if names.fullmatch(name):
                raise InvalidSetting(
                    f"{variable} is a setting of {plugin}, which is not installed: install it, or "
                    "unset the variable"
                )


def _explain(fault: Any, came_from: Mapping[str, str]) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    source = came_from.get(name, "")
    place = f"in {source}" if "/" in source or source.endswith(".toml") else PREFIX + name.upper()
    given = repr(fault["input"])
    if (
        fault["input"]
        and name in hidden(all_settings())
        and (not is_address(name, all_settings()) or "@" in given)
    ):
        given = IS_SET
    return f"{name} ({place}) = {given}: {message}"
