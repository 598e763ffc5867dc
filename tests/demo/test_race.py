"""Two streams with a clock: side by side in a terminal, line by line in a pipe."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from demo.client import Answer, Client
from demo.race import race

TEXTS = {"vanilla": ("The", " zebra."), None: ("The", " lion.")}


class Canned(Client):
    """A service that answers full prefill one way and the default another."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    def ask(
        self,
        question: str,
        method: str | None = None,
        *,
        on_text: Callable[[str], None] = lambda text: None,
        **more: Any,
    ) -> Answer:
        self.asked.append(method)
        for piece in TEXTS[method]:
            on_text(piece)
        return Answer("".join(TEXTS[method]), 0.1, ("botswana",))


@pytest.mark.parametrize("terminal", [True, False])
def test_both_answers_are_shown_and_full_prefills_is_returned(terminal: bool) -> None:
    out, client = io.StringIO(), Canned()
    console = Console(file=out, width=100, force_terminal=terminal)
    answer = race(console, client, "Which animal?")
    assert client.asked == ["vanilla", None]
    assert answer.text == "The zebra."
    said = out.getvalue()
    rows = [line for line in said.splitlines() if "The zebra." in line]
    assert rows and "The lion." in said
    assert ("The lion." in rows[-1], "\x1b" in said) == (terminal, terminal)
    assert "first word 0.00 s, all 0.00 s" in said
