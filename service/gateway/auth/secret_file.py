"""The data folder's own secret, for tenants' keys where KVSTITCH_TENANT_SECRET is not set."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_BYTES = 32


def own_secret(data_dir: Path) -> str:
    """Return the content of `tenants.secret` in hex; the file is created if it is not there.

    If it is lost, no stored chunk of a named tenant can be found any more.
    """
    path = data_dir / "tenants.secret"
    if not path.exists():
        # Written aside and renamed, because a crash must not leave half a secret.
        temporary = path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    return path.read_text(encoding="ascii").strip()
