"""What the audit log says of settings: those that are not the defaults, and never a secret.

A start with other settings than the one before is an entry, and so is a reload that changes some.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kvstitch_audit.audit_log import SERVICE, AuditLog, now
from kvstitch_audit.chain import Event
from service.settings import Settings
from service.settings.fields import IS_SET, hidden

CHANGED = "settings"  # the entry's action


def recorded(settings: Settings) -> dict[str, Any]:
    """Return the settings that are not as they are by default, as they are recorded."""
    found = {}
    secret = hidden(type(settings))
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if value != field.get_default(call_default_factory=True):
            found[name] = IS_SET if name in secret else _json(value)
    return found


def record_changes(log: AuditLog, settings: Settings) -> None:
    """Append an entry if a service starts with other settings than the last one did. Blocks."""
    before = log.last("", CHANGED)
    old = {} if before is None else before["details"]["settings"]
    new = recorded(settings)
    if before is not None and old == new:
        return
    changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    log.append([change(new, changed)])


def change(settings: dict[str, Any], changed: Sequence[str], **more: Any) -> Event:
    """Return the entry of changed settings."""
    details = {"settings": settings, "changed": changed, **more}
    return Event("", SERVICE, CHANGED, now(), details)


def of_operator(action: str, tenant: str, details: Mapping[str, Any]) -> Event:
    """Return the entry of what somebody does by the command line."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return Event(tenant, f"operator:{user}", action, now(), details)


def _json(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)
