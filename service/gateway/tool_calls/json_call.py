"""Reads one call while its characters come in: an object with a name and arguments.

It knows as much JSON as it takes to find where the arguments begin and end. Whether the whole is
JSON is checked once it is complete.
"""

import json
from typing import Any

from pydantic_core import from_json

ARGUMENT_KEYS = ("arguments", "parameters")
_KEYS = ("name", *ARGUMENT_KEYS, "type", "id")
_OPENS, _CLOSES = "{[", "}]"


class CallReader:
    """One object, read character by character."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.complete = False
        self.broken = False
        self.foreign = self.given = False
        self._bare = name is not None
        self._chars: list[str] = []  # joined only when asked: answers can be long
        self._arguments = ""  # once they have ended
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key: str | None = None
        self._token_start = 0  # where the key or value begins
        self._in_value = False

    @property
    def arguments(self) -> str:
        """The text of the arguments so far."""
        if self._bare:
            return self._text()
        if self._in_value and self._key in ARGUMENT_KEYS:
            return self._text(self._token_start).strip()
        return self._arguments

    def _text(self, start: int = 0, end: int | None = None) -> str:
        return "".join(self._chars[start:end])

    @property
    def streamable(self) -> bool:
        """Whether what `arguments` holds is final: an object's text, not a string with one."""
        return self.name is not None and self.arguments.startswith("{")

    @property
    def name_so_far(self) -> str | None:
        """The name, or the part of it that has come; None: it has not begun."""
        if self.name is not None:
            return self.name
        return self._begun_text() if self._in_value and self._key == "name" else None

    @property
    def arguments_so_far(self) -> str:
        """The text of the arguments that has come, of a string with it what the string says."""
        if not self.complete and self.arguments.startswith('"'):
            return self._begun_text() or ""
        return self.arguments if self.arguments.startswith("{") else ""

    def _begun_text(self) -> str | None:
        """Return the string that began with the last value."""
        try:
            found = from_json(self._text(self._token_start), allow_partial="trailing-strings")
        except ValueError:
            return None
        return found if isinstance(found, str) else None

    def feed(self, char: str) -> None:
        """Take the next character; not after `complete` or `broken`."""
        at = len(self._chars)
        self._chars.append(char)
        outside = not self._in_string
        self._follow(char)
        if not self._bare and (self._depth == 0 or (self._depth == 1 and outside)):
            self._structure(char, at)
        if self._depth == 0 and not self._in_string:
            self._finish()

    def _follow(self, char: str) -> None:
        if self._in_string:
            self._in_string = char != '"' or self._escaped
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in _OPENS:
            self._depth += 1
        elif char in _CLOSES:
            self._depth -= 1

    def _structure(self, char: str, at: int) -> None:
        """Take a character of the object itself, outside of strings and of what it holds."""
        if char == ":" and not self._in_value:
            self._key = self._read(self._text(self._token_start, at))
            self._in_value, self._token_start = True, at + 1
            self.broken |= not isinstance(self._key, str)
            self.foreign |= self._key not in _KEYS
            self.given |= self._key in ARGUMENT_KEYS
        elif char == "," or (char == "}" and self._depth == 0):
            if self._in_value:
                self._take(self._text(self._token_start, at))
            self._in_value, self._token_start, self._key = False, at + 1, None
        elif char == "{" and self._depth == 1:
            self._token_start = at + 1

    def _take(self, value: str) -> None:
        if self._key == "name":
            self.name = self._read(value)
            self.broken |= not isinstance(self.name, str)
        elif self._key in ARGUMENT_KEYS:
            read = self._read(value)
            # Some models write the arguments' JSON as a string.
            self._arguments = read if isinstance(read, str) else value.strip()
            if read is None:
                self._arguments = ""

    def _read(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            self.broken = True
            return None

    def _finish(self) -> None:
        self.complete = True
        self._arguments = self._arguments or "{}"
        self.broken |= self.name is None or not is_object(self.arguments)
        if not self._bare:
            self._read(self._text())


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def object_of(text: str) -> dict[str, Any]:
    """Return the fields, as far as they go, of an object whose JSON text was cut short or is wrong;
    of what is not the beginning of an object the text itself."""
    try:
        found = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}
