"""What the audit log says of settings: those that are not the defaults, and never a secret.

Settings are read once, at a start. So a start with other settings than the one before is how they
change, and is an entry.
"""

from __future__ import annotations

import getpass
import os
from typing import Any

from service.gateway.audit.audit_log import SERVICE, AuditLog, now
from service.gateway.audit.chain import Event
from service.settings import Settings

CHANGED = "settings"  # the entry's action
# They hold passwords, or may: addresses with a user or a token in them. Only that they are set is
# said; a changed one is no change here.
HIDDEN = frozenset(
    {
        "counters_url", "database", "embedder_key", "embedder_url", "fleet_secret",
        "oidc_client_secret", "oidc_jwks", "otlp_endpoint", "redis_url", "reranker_key",
        "reranker_url", "s3_endpoint", "tenant_secret", "webhook_secret", "webhook_url",
    }
)  # fmt: skip
IS_SET = "…"


def recorded(settings: Settings) -> dict[str, Any]:
    """Return the settings that are not as they are by default, as they are recorded."""
    found = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if value != field.get_default(call_default_factory=True):
            found[name] = IS_SET if name in HIDDEN else _json(value)
    return found


def record_changes(log: AuditLog, settings: Settings) -> None:
    """Append an entry if a service starts with other settings than the last one did. Blocks."""
    before = log.last("", CHANGED)
    old = {} if before is None else before["details"]["settings"]
    new = recorded(settings)
    if before is not None and old == new:
        return
    changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    details = {"settings": new, "changed": changed}
    log.append([Event("", SERVICE, CHANGED, now(), details)])


def operator() -> str:
    """Return who works on the data folder itself, as entries name them."""
    try:
        return f"operator:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"operator:{os.getuid()}"


def _json(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)
