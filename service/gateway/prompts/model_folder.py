"""The model's folder on this machine: finds it and reads the JSON files beside the weights."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from service.errors import ModelRefused
from service.settings import demo_model


def resolve(model: str) -> Path:
    """Find the folder of a model, and download it if need be.

    Args:
        model: A folder, a Hugging Face id (owner/name), or empty for the demo model.

    Raises:
        ModelRefused: There is no such model; the message says what to do.
    """
    if not model:
        if not (demo_model() / "config.json").is_file():
            raise ModelRefused(
                f"there is no demo model in {demo_model()}: train it with "
                "`python -m demo.training.train`, "
                "or give a model folder with --model"
            )
        return demo_model()
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelRefused(f"{path} holds no config.json: not a Hugging Face model folder")
        return path.resolve()
    if path.exists() or model.startswith(("/", ".", "~")) or model.count("/") != 1:
        raise ModelRefused(f"{model} is neither a model folder nor a Hugging Face id (owner/name)")
    return _download(model)


def _download(model: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelRefused(
            f"{model} is no folder here, and to download it huggingface_hub must be installed"
        ) from None
    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.jinja", "*.safetensors"]))
    except Exception as error:
        raise ModelRefused(
            f"{model} is no folder here and could not be downloaded: {error}"
        ) from error


class ModelFolder:
    """Read access to the JSON files beside the weights; a missing file reads as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def created(self) -> int:
        """When the model was saved, in Unix seconds; 0 if that is not known."""
        file = self.path / "config.json"
        return int(file.stat().st_mtime) if file.is_file() else 0

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        return self._json("tokenizer_config.json")

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end an answer."""
        for file in ("generation_config.json", "config.json"):
            ids = self._json(file).get("eos_token_id")
            if ids is not None:
                return frozenset(ids if isinstance(ids, list) else [ids])
        return frozenset()

    def special_text(self, name: str) -> str | None:
        """The text of `bos_token`, `eos_token`, …; None if the model has no such token."""
        token = self.tokenizer_config.get(name)
        # A string, or an object that describes an added token.
        text = token.get("content") if isinstance(token, dict) else token
        return str(text) if text else None

    def chat_template(self) -> str | None:
        """The model's chat template, None if it has none."""
        file = self.path / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        found = self.tokenizer_config.get("chat_template")
        if isinstance(found, list):  # several templates with names
            found = {t.get("name"): t.get("template") for t in found}.get("default")
        return str(found) if found else None

    def _json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        if not file.is_file():
            return {}
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelRefused(f"{file} cannot be read: {error}") from error
        return content if isinstance(content, dict) else {}
