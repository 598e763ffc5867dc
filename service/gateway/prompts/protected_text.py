"""Keeps clients' texts apart from the template that they are written into.

Definitions of tools and arguments of calls are rendered by the model's chat template, which writes
them as it likes. A special token spelled in them would become one. So it is replaced by a {name}
before the template is rendered, and is filled in as user text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

_NAMES = r"\{(?:[tx]\d+|tools)\}"


class ProtectedText:
    """Replaces what must not be read as part of a template.

    Attributes:
        texts: Name to text, for `ServingTokenizer.encode_template`.
    """

    def __init__(self, added_texts: Collection[str]) -> None:
        """Nothing is replaced yet.

        Args:
            added_texts: Texts that would become single tokens.
        """
        longest_first = sorted((text for text in added_texts if text.strip()), key=len)[::-1]
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), _NAMES]))
        self.texts: dict[str, str] = {}

    def protect(self, value: Any) -> Any:
        """The value with all its strings, and keys, safe."""
        if isinstance(value, str):
            return self._pattern.sub(self._name, value)
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.protect(item) for item in value]
        return value

    def _name(self, found: re.Match[str]) -> str:
        name = f"x{len(self.texts)}"
        self.texts[name] = found[0]
        return f"{{{name}}}"
