"""Reads server-sent events, and of them the events of a streamed answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from kvstitch.client.errors import SHOWN_CHARS, UnexpectedResponse, from_event
from kvstitch.client.json_reader import read
from kvstitch.records.answers import Answer, Citation


@dataclass(frozen=True)
class Sources:
    """The passages that the prompt holds; they come first."""

    citations: list[Citation]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Token:
    """The next piece of the answer's text. logprobs: where the request asks for them."""

    text: str
    logprobs: list[dict[str, Any]] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Done:
    """The whole answer; it comes last."""

    answer: Answer


Event = Sources | Token | Done


@dataclass
class LineReader:
    """Reads server-sent events as the service writes them: one line of JSON each."""

    _name: str = ""

    def feed(self, line: str) -> tuple[str, Any] | None:
        """Return name and data of the event that this line completes, if it completes one.

        Comments and `[DONE]` are none; OpenAI's have no name. ValueError: the data is no JSON.
        """
        if line.startswith("event: "):
            self._name = line.removeprefix("event: ")
        if not line.startswith("data: ") or line == "data: [DONE]":
            return None
        return self._name, json.loads(line.removeprefix("data: "))


def server_sent_events(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and data of every event in the lines of a response."""
    reader = LineReader()
    return (event for line in lines if (event := reader.feed(line)) is not None)


@dataclass
class EventReader:
    """Makes events of the lines of a streamed answer.

    Attributes:
        response: The response that is read.
        answer: The whole answer, once it has come.
    """

    response: httpx.Response
    answer: Answer | None = None
    _lines: LineReader = field(default_factory=LineReader, repr=False)

    def event(self, line: str) -> Event | None:
        """Return the event that this line completes; None if there is none that is known here.

        Raises:
            KvstitchError: The service says that the answer failed.
        """
        try:
            found = self._lines.feed(line)
            return None if found is None else self._read(*found)
        except (ValueError, LookupError, TypeError) as error:
            raise UnexpectedResponse(
                f"{self.response.url} streams, but not as kvstitch does: {line[:SHOWN_CHARS]}"
            ) from error

    def _read(self, name: str, data: Any) -> Event | None:
        match name:
            case "sources":
                return Sources([read(Citation, one) for one in data["citations"]], data)
            case "token":
                return Token(data["text"], data.get("logprobs"), data)
            case "done":
                self.answer = read(Answer, data)
                return Done(self.answer)
            case "error":
                raise from_event(data, self.response)
        return None

    def check_whole(self) -> None:
        """Raise UnexpectedResponse if the stream has ended without a result."""
        if self.answer is None:
            raise UnexpectedResponse("the stream broke off before the answer was whole")

    @property
    def result(self) -> Answer:
        """The whole answer, after the last event."""
        if self.answer is None:
            raise UnexpectedResponse("the stream has no result: it was not read to its end")
        return self.answer
