"""The seam between the core and what comes beside it: kinds of things that plugins add.

A plugin is a module with functions that are marked with `hookimpl` and named as in hookspecs.py. It
is found by its entry point in the group "kvstitch", or named in KVSTITCH_PLUGINS. The core asks
`hooks()`; it imports no plugin, and a plugin's module imports what is heavy where it is used.
"""

from kvstitch.service.plugins.hookspecs import hookimpl
from kvstitch.service.plugins.kinds import (
    Adapters,
    FileFormat,
    GatewayPart,
    IdentityProvider,
    ModelSource,
    PictureReader,
    Tables,
    TierKind,
    Verb,
)
from kvstitch.service.plugins.manager import (
    VARIABLE,
    adapters,
    hooks,
    load_object,
    registered,
    tiers,
)

__all__ = [
    "VARIABLE",
    "Adapters",
    "FileFormat",
    "GatewayPart",
    "IdentityProvider",
    "ModelSource",
    "PictureReader",
    "Tables",
    "TierKind",
    "Verb",
    "adapters",
    "hookimpl",
    "hooks",
    "load_object",
    "registered",
    "tiers",
]
