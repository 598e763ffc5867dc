"""The tree of errors is what the module's docstring draws."""

from __future__ import annotations

import re

from kvstitch.service import errors
from kvstitch.service.errors import KvstitchError, Unroutable, UnsupportedMediaType

LINE = re.compile(r"^(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?P<status>\d{3}|4xx)  (?P<code>\S+)")


def drawn() -> dict[str, tuple[str, str, str]]:
    """Class name to (its base, status, code)."""
    found: dict[str, tuple[str, str, str]] = {}
    bases: list[str] = ["Exception"]
    for line in (errors.__doc__ or "").splitlines():
        if match := LINE.match(line):
            depth = len(match["indent"]) // 4
            del bases[depth + 1 :]
            found[match["name"]] = (bases[depth], match["status"], match["code"])
            bases.append(match["name"])
    return found


def subclasses(cls: type[KvstitchError]) -> list[type[KvstitchError]]:
    own = [c for c in cls.__subclasses__() if c.__module__ == errors.__name__]
    return [cls, *(below for c in own for below in subclasses(c))]


def test_the_drawing_shows_every_error_with_its_base_status_and_code() -> None:
    tree = drawn()
    classes = subclasses(KvstitchError)
    assert set(tree) == {cls.__name__ for cls in classes}
    for cls in classes:
        base, status, code = tree[cls.__name__]
        assert (cls.__base__ or object).__name__ == base
        if not issubclass(cls, Unroutable):
            assert (status, code) == (str(cls.status), cls.code)
    refused = UnsupportedMediaType("no")
    assert tree["UnsupportedMediaType"][1:] == (str(refused.status), refused.code)
    assert Unroutable(404, "no").code == "not_found"


def test_codes_of_the_worker_come_back_as_their_class() -> None:
    error = errors.from_code("prompt_too_long", "too long", "question")
    assert type(error) is errors.PromptTooLong and error.field == "question"
    assert type(errors.from_code("no such code", "?")) is errors.WorkerFault
