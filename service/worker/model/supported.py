"""Which models are supported. Importable without torch, for the CLI's checks."""

from __future__ import annotations

from pathlib import Path

# RoPE types whose frequencies are fixed by the config.
STATIC_ROPE_TYPES = ("default", "linear", "yarn", "llama3")
# Those that are fixed up to the length that the model was trained for. Beyond it they change with
# the prompt's length, so a key rotated for a short prompt would be wrong in a long one.
ROPE_TYPES_UP_TO_A_LENGTH = ("dynamic", "longrope")

# Families that may rotate only a part of every head, as their config says.
PARTIAL_ROTATION = ("phi3",)
# Families whose `sliding_window` holds for every layer, and for those that `layer_types` names.
# Others do not look at it.
WINDOW_IN_EVERY_LAYER = ("mistral", "mixtral", "phi3", "qwen3_moe")
WINDOW_BY_LAYER = (
    *("cohere2", "gemma2", "gemma3_text", "gpt_oss", "ministral", "olmo3"),
    *("qwen2", "qwen2_moe", "qwen3", "smollm3"),
)


def families() -> frozenset[str]:
    """The supported `model_type`s: each has a file in `families`."""
    files = (Path(__file__).parent / "families").glob("*.py")
    return frozenset(file.stem for file in files if file.stem != "__init__")
