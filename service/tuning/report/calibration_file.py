"""Writes fields into a calibration file, where other fields stay."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def merge(path: Path, **fields: Any) -> Path:
    """Writes fields to `path`, atomically; returns the path.

    Other fields stay, unless the file is not a JSON object, or says that it is another model's.
    """
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        before = {}
    if "model" in fields and before.get("model", fields["model"]) != fields["model"]:
        before = {}
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**before, **fields}, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path
