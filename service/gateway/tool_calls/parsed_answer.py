"""What an answer is made of: text, and calls."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """Text of the answer that is no call."""

    text: str


@dataclass(frozen=True)
class CallStarted:
    """A call; its arguments follow. `index` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments, which are JSON text."""

    index: int
    text: str


Piece = Text | CallStarted | CallArguments


@dataclass
class ParsedCall:
    id: str
    name: str
    arguments: str


@dataclass
class ParsedAnswer:
    """A whole answer: its text without calls, and its calls."""

    text: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        match piece:
            case Text(text):
                self.text += text
            case CallStarted(_, id, name):
                self.calls.append(ParsedCall(id, name, ""))
            case CallArguments(index, text):
                self.calls[index].arguments += text
