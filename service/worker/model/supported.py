"""What kinds of model are served, for those who must not load torch to know it."""

from __future__ import annotations

from pathlib import Path

# Frequencies fixed by the config; dynamic and longrope change them with the prompt's length, so a
# key rotated for a short prompt would be wrong in a long one.
STATIC_ROPE_TYPES = ("default", "linear", "yarn", "llama3")

_SHARED = {"__init__", "base", "fused_linear", "norms"}


def families() -> frozenset[str]:
    """The `model_type`s that have an adapter: one file each."""
    files = (Path(__file__).parent / "adapters").glob("*.py")
    return frozenset(file.stem for file in files) - _SHARED
