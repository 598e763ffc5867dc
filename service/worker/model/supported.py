"""Which models are supported. Importable without torch, for the CLI's checks."""

from __future__ import annotations

from pathlib import Path

# RoPE types whose frequencies are fixed by the config. dynamic and longrope change them with the
# prompt's length, so a key rotated for a short prompt would be wrong in a long one.
STATIC_ROPE_TYPES = ("default", "linear", "yarn", "llama3")

_NOT_FAMILIES = {"__init__", "base", "fused_linear", "norms"}


def families() -> frozenset[str]:
    """The supported `model_type`s: each has a file in `adapters`."""
    files = (Path(__file__).parent / "adapters").glob("*.py")
    return frozenset(file.stem for file in files) - _NOT_FAMILIES
