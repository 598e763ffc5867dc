"""Reads the events of a streamed answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from kvstitch.client.errors import SHOWN_CHARS, UnexpectedResponse, from_event
from kvstitch.client.json_reader import read
from kvstitch.client.results import Answer, Citation


@dataclass(frozen=True)
class Sources:
    """The passages that the prompt holds; they come first."""

    citations: list[Citation]


@dataclass(frozen=True)
class Token:
    """The next piece of the answer's text. logprobs: where the request asks for them."""

    text: str
    logprobs: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Done:
    """The whole answer; it comes last."""

    answer: Answer


Event = Sources | Token | Done


@dataclass
class EventReader:
    """Makes events of a response's lines.

    Attributes:
        response: Of which the lines are.
        answer: The whole answer, once it has come.
    """

    response: httpx.Response
    answer: Answer | None = None
    _name: str = field(default="", repr=False)

    def event(self, line: str) -> Event | None:
        """The event that ends with this line; None: there is none, or none that is known here.

        Raises:
            KvstitchError: The service says that the answer failed.
        """
        if line.startswith("event: "):
            self._name = line.removeprefix("event: ")
        if not line.startswith("data: "):
            return None
        try:
            return self._read(json.loads(line.removeprefix("data: ")))
        except (ValueError, LookupError, TypeError) as error:
            raise UnexpectedResponse(
                f"{self.response.url} streams, but not as kvstitch does: {line[:SHOWN_CHARS]}"
            ) from error

    def _read(self, data: Any) -> Event | None:
        match self._name:
            case "sources":
                return Sources([read(Citation, one) for one in data["citations"]])
            case "token":
                return Token(data["text"], data.get("logprobs"))
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
        """The whole answer, after the last event.

        Raises:
            UnexpectedResponse: The stream was not read to its end.
        """
        if self.answer is None:
            raise UnexpectedResponse("the stream has no result: it was not read to its end")
        return self.answer
