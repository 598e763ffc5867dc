"""Reads the JSON files beside the weights in a model's folder."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from service.errors import ModelRefused


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
        """Return the text of `bos_token`, `eos_token`, …; None if the model has no such token."""
        token = self.tokenizer_config.get(name)
        # A string, or an object that describes an added token.
        text = token.get("content") if isinstance(token, dict) else token
        return str(text) if text else None

    def chat_template(self, *, tools: bool = False) -> str | None:
        """Return the model's chat template, None if it has none.

        Args:
            tools: The one for conversations with tools, where the model has one of its own.
        """
        names = ["additional_chat_templates/tool_use.jinja"] if tools else []
        for name in (*names, "chat_template.jinja"):
            file = self.path / name
            if file.is_file():
                return file.read_text(encoding="utf-8")
        found = self.tokenizer_config.get("chat_template")
        if isinstance(found, list):  # several templates with names
            named = {t.get("name"): t.get("template") for t in found}
            found = (named.get("tool_use") if tools else None) or named.get("default")
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
