"""Files of ours in a named model's folder: its prompt format, and what was calibrated for it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from service.models.catalogue import NamedModel

NOTE = "from_release.json"


def refresh(model: NamedModel, folder: Path) -> None:
    """Bring this release's files into the folder; a file that the user has changed stays."""
    note = folder / NOTE
    ours: dict[str, str] = json.loads(note.read_text()) if note.is_file() else {}
    wanted = {extra.name: extra.read_bytes() for extra in model.extras}
    written = dict(ours)
    for name, content in wanted.items():
        place = folder / name
        if place.is_file() and _digest(place.read_bytes()) != ours.get(name):
            continue
        written[name] = _digest(content)
        if written[name] != ours.get(name) or not place.is_file():
            _write(place, content)
    if written != ours:
        _write(note, json.dumps(written, indent=2).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(file: Path, content: bytes) -> None:
    """Replace a file at once, readable by its owner alone."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)
    new.replace(file)
