"""Values that are lists, separated by commas."""

from __future__ import annotations

from pathlib import Path


def parts(value: str) -> list[str]:
    """What stands between the commas."""
    return [part for part in map(str.strip, value.split(",")) if part]


def named_folders(value: str) -> dict[str, Path]:
    """Folders by their names, of NAME=FOLDER."""
    pairs = [part.partition("=") for part in parts(value)]
    return {name.strip(): Path(folder.strip()).expanduser() for name, _, folder in pairs}
