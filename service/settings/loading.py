"""Reads the settings of options, environment and file, explains what is wrong with them, says where
each value comes from, and which a running service takes over when they are read again.

    redis_url = "redis://cache:6379/0"
    memory_tier_mib = 8192

is such a file. One is read, the first that is found: what `--config` names, what KVSTITCH_CONFIG
names, ./kvstitch.toml, /etc/kvstitch/kvstitch.toml.
"""

import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ValidationError, create_model
from pydantic_settings import BaseSettings, TomlConfigSettingsSource

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.plugins import VARIABLE as PLUGINS_VARIABLE
from kvstitch.service.plugins import hooks
from kvstitch.service.settings.fields import IS_SET, is_secret
from kvstitch.service.settings.settings import FILE, PREFIX, Settings

FILE_NAME: Final = "kvstitch.toml"
VARIABLE: Final = "KVSTITCH_CONFIG"
SYSTEM_FILE: Final = Path("/etc/kvstitch") / FILE_NAME


@cache
def all_settings() -> type[Settings]:
    """Return `Settings` with the fields that plugins declare."""
    declared = tuple(hooks().settings())
    return create_model("Settings", __base__=(*declared, Settings)) if declared else Settings


def load(config: str | Path | None = None, /, **overrides: Any) -> Settings:
    """Read the settings from options, the environment and the file.

    Args:
        config: The file; None: the first that is found.
        **overrides: Take precedence if they are not None.

    Raises:
        InvalidSetting: Some are wrong; the message has one line for each of them all.
    """
    wrong = _missing_plugins(os.environ)
    file = source = None
    try:
        if file := find_file(config, os.environ):
            source = _parse(file, all_settings())
            wrong += _unknown_names(file, source, all_settings())
    except InvalidSetting as error:
        wrong.append(error.message)
    given = {name: value for name, value in overrides.items() if value is not None}
    in_file = {} if source is None else source.toml_data
    came_from = sources(given, os.environ, in_file, file)
    reset = FILE.set(source)
    try:
        while True:
            try:
                settings = all_settings()(**given)
                break
            except ValidationError as error:
                fields = all_settings().model_fields
                faults = [
                    f
                    for f in error.errors()
                    if f["type"] != "extra_forbidden" or f["loc"][0] not in in_file  # it is said
                ]
                wrong += [_explain(fault, came_from) for fault in faults]
                # What is wrong with several settings together shows where each is right.
                named = {str(f["loc"][0]) for f in faults if f["loc"]} & fields.keys()
                defaults = {n: fields[n].get_default(call_default_factory=True) for n in named}
                if defaults.items() <= given.items():
                    break
                given |= defaults
    finally:
        FILE.reset(reset)
    if wrong:
        raise InvalidSetting("\n".join(dict.fromkeys(wrong)))
    return settings


def find_file(given: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the file that is to be read, which the command line or a variable may name. Raises
    InvalidSetting: the file that is named is not there."""
    for named, by in ((given, "--config"), (environment.get(VARIABLE), VARIABLE)):
        if named:
            path = Path(named).expanduser()
            if not path.exists() or path.is_dir():
                raise InvalidSetting(f"{by} names {path}, and there is no such file")
            return path
    return next((path for path in (Path(FILE_NAME), SYSTEM_FILE) if path.is_file()), None)


def read_file(path: Path, settings: type[BaseSettings]) -> TomlConfigSettingsSource:
    """Return what the file says; `toml_data` has it by the names of settings. Raises InvalidSetting
    if it cannot be read, or has names that are no settings."""
    found = _parse(path, settings)
    if unknown := _unknown_names(path, found, settings):
        raise InvalidSetting("\n".join(unknown))
    return found


def _parse(path: Path, settings: type[BaseSettings]) -> TomlConfigSettingsSource:
    try:
        return TomlConfigSettingsSource(settings, toml_file=path)
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # UnicodeDecodeError, too
        raise InvalidSetting(f"{path} is not TOML: {error}") from None


def _unknown_names(
    path: Path, found: TomlConfigSettingsSource, settings: type[BaseSettings]
) -> list[str]:
    known = settings.model_fields
    unknown = {name: value for name, value in found.toml_data.items() if name not in known}
    return [f"{path}: {_unknown(name, value, known)}" for name, value in unknown.items()]


def _unknown(name: str, value: Any, known: Collection[str]) -> str:
    if isinstance(value, dict):
        return f"[{name}] is a table: settings stand at the top, without one"
    if missing := _missing_plugin(name):
        return f"{name} {missing}"
    meant = _nearest(name.removeprefix(PREFIX).removeprefix(PREFIX.lower()), known)
    return f"{name} is no setting" + (f": did you mean {meant}?" if meant else "")


def _nearest(name: str, known: Collection[str]) -> str:
    """Return the name that was probably meant; "" if none is like it."""
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return near[0] if near else ""


def sources(
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    in_file: Mapping[str, Any],
    file: Path | None,
) -> dict[str, str]:
    """Return where each setting's value comes from: `option`, a variable, a file, `default`.

    Variables count whatever their case; an empty value is none.
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


def _explain(fault: Any, came_from: Mapping[str, str]) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    source = came_from.get(name, "")
    place = f"in {source}" if "/" in source or source.endswith(".toml") else PREFIX + name.upper()
    given = repr(fault["input"])
    if fault["input"] and is_secret(name, given, all_settings()):
        given = IS_SET
    return f"{name} ({place}) = {given}: {message}"


# What clients and the command line read, and what Kubernetes sets beside a service of this name.
_OF_OTHERS = re.compile(
    rf"KVSTITCH_(URL|API_KEY|(\w+_)?SERVICE_(HOST|PORT)\w*|(\w+_)?PORT_\w+)|{VARIABLE}|{PLUGINS_VARIABLE}"
)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return what is to be said of variables with our prefix that are no settings, one by one."""
    lines = []
    for name, field in _own_variables(environment):
        if field not in all_settings().model_fields and not _OF_OTHERS.fullmatch(name.upper()):
            near = _nearest(field, all_settings().model_fields)
            meant = f": did you mean {PREFIX}{near.upper()}?" if near else ""
            lines.append(f"{name} is no setting and has no effect{meant}")
    return lines


def _own_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables with our prefix, each with what it would be called as a setting."""
    return [
        (name, name.upper().removeprefix(PREFIX).lower())
        for name in sorted(environment)
        if name.upper().startswith(PREFIX)
    ]


# Settings that nobody may set in vain, by the plugin without which they have no effect.
_NEVER_IGNORED = {
    "kvstitch-audit": re.compile(r"audit(_\w+)?"),
    "kvstitch-counters": re.compile(r"counters_url"),
    "kvstitch-oidc": re.compile(r"oidc_\w+"),
    "kvstitch-pgvector": re.compile(r"vectors"),
    "kvstitch-s3": re.compile(r"s3_\w+"),
    "kvstitch-vllm": re.compile(r"engine(_\w+)?"),
}


def _missing_plugin(name: str) -> str | None:
    """Return what is to be said of a setting whose plugin is not installed."""
    plugins = (plugin for plugin, names in _NEVER_IGNORED.items() if names.fullmatch(name))
    if (plugin := next(plugins, None)) is None or name in all_settings().model_fields:
        return None
    return f"is a setting of {plugin}, which is not installed: pip install {plugin}, or unset it"


def _missing_plugins(environment: Mapping[str, str]) -> list[str]:
    return [
        f"{variable} {missing}"
        for variable, name in _own_variables(environment)
        if environment[variable] and (missing := _missing_plugin(name))
    ]


# What is looked at in every call. All else is built into something at the start: connections,
# processes, tables, the model.
RELOADABLE: Final = frozenset(
    {
        "cold", "condense", "drain_timeout_s", "exact_below",
        "history", "max_body_values", "max_document_bytes", "max_documents",
        "max_in_flight_per_key", "max_pdf_bytes", "max_question_chars", "max_texts",
        "max_texts_chars", "max_tokens_limit", "max_top_k", "max_waiting_tokens",
        "rerank_deadline_s", "rerank_timeout_s", "retrieval", "stream_ping_s",
        "tenant_max_bytes", "tenant_max_documents", "tenant_requests_per_minute",
        "tenant_tokens_per_minute", "unanswerable", "unanswerable_text",
    }
)  # fmt: skip


def is_reloadable(name: str, settings: type[BaseModel]) -> bool:
    """Return whether a running service takes over a setting, which may be a plugin's."""
    extra = settings.model_fields[name].json_schema_extra
    return name in RELOADABLE or (isinstance(extra, dict) and extra.get("reloadable") is True)


@dataclass(frozen=True)
class Reload:
    """What reading the settings again comes to: what is taken over, and what only a restart
    changes."""

    changed: list[str]
    need_restart: list[str]

    @classmethod
    def of(cls, running: Settings, read: Settings) -> Self:
        kind = type(read)
        differ = {n for n in kind.model_fields if getattr(running, n) != getattr(read, n)}
        taken = {name for name in differ if is_reloadable(name, kind)}
        return cls(sorted(taken), sorted(differ - taken))

    def applied(self, running: Settings, read: Settings) -> Settings:
        """Return the settings to run with from now on."""
        return running.model_copy(update={name: getattr(read, name) for name in self.changed})

    def told(self) -> str:
        """What was done, for the log."""
        said = f"settings read again: {', '.join(self.changed) or 'nothing'} changed"
        if self.need_restart:
            said += f"; only a restart changes {', '.join(self.need_restart)}"
        return said
