"""The data folder's own secret, for tenants where KVSTITCH_TENANT_SECRET is not set. No HTTP."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_BYTES = 32


def own_secret(data_dir: Path) -> str:
    """Hex of `tenants.secret`, which is made when it is not there. Lost, every chunk of a named
    tenant is a miss."""
    path = data_dir / "tenants.secret"
    if not path.exists():
        # Whole or not there: half a secret would be another one after a crash.
        temporary = path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    return path.read_text(encoding="ascii").strip()
