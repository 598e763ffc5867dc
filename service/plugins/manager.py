"""Loads the plugins of a process, once, when they are first asked for."""

import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain
from types import ModuleType
from typing import Any, Final

import pluggy

from kvstitch.service.errors import InvalidSetting, PluginFailed
from kvstitch.service.plugins import hookspecs
from kvstitch.service.plugins.hookspecs import GROUP
from kvstitch.service.plugins.kinds import Adapters, TierKind

VARIABLE: Final = "KVSTITCH_PLUGINS"
"""Modules, by commas, that are plugins without being installed as such."""


def hooks() -> pluggy.HookRelay:
    """Return the hooks; calling one gives a list with what each plugin returns."""
    return _manager().hook


def registered() -> dict[str, Any]:
    """Return the loaded plugins' modules by name."""
    return dict(_manager().list_name_plugin())


@cache
def tiers() -> dict[str, TierKind]:
    """Return the tiers of the KV store that plugins add, by name."""
    return {tier.name: tier for tier in chain.from_iterable(hooks().kv_tiers())}


def adapters() -> Adapters:
    """Return what reads LoRA adapters. Raises InvalidSetting: no plugin does."""
    found: Adapters | None = hooks().adapters()
    if found is None:
        raise InvalidSetting("lora needs a plugin that is not here: pip install kvstitch-lora")
    return found


def load_object(place: str) -> Any:
    """Return what "module:name" names in a declaration of a plugin. Raises PluginFailed: there is
    no such thing, or it cannot be imported."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        message = f"{place}, which a plugin names, cannot be imported: {error!r}"
        raise PluginFailed(message) from error


@cache
def _manager() -> pluggy.PluginManager:
    made = pluggy.PluginManager(GROUP)
    made.add_hookspecs(hookspecs)
    for name, module in _modules():
        if made.is_registered(module):
            continue
        try:
            made.register(module, name)
            made.check_pending()
        except (ValueError, pluggy.PluginValidationError) as error:
            raise _failed(name, error) from error
    return made


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for entry in sorted(entry_points(group=GROUP)):
        try:
            yield entry.name, entry.load()
        except Exception as error:
            raise _failed(entry.name, error) from error
    for module in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        try:
            yield module, import_module(module)
        except Exception as error:
            raise _failed(module, error) from error


def _failed(name: str, error: Exception) -> PluginFailed:
    return PluginFailed(
        f"the plugin {name} cannot be loaded ({type(error).__name__}: {error}): install what it "
        f"needs or a version that fits, or take it away (pip uninstall, or {VARIABLE})"
    )
