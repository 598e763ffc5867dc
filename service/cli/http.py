"""Talking to a running service. Knows its errors and its events; no command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from service.errors import KvstitchError


class Refused(KvstitchError):
    """The service answered with an error, or not at all."""


@contextmanager
def client(url: str) -> Iterator[httpx.Client]:
    """A client for the service at `url`; KVSTITCH_API_KEY is its key. Raises Refused with what to
    do."""
    key = os.environ.get("KVSTITCH_API_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(600.0, connect=5.0)
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=timeout) as http:
            yield http
    except httpx.ConnectError:
        raise Refused(
            f"no service answers at {url}: start one with `kvstitch serve`, or give --url"
        ) from None
    except httpx.InvalidURL as error:
        raise Refused(f"{url} is not a URL: {error}") from None
    except httpx.HTTPError as error:
        raise Refused(f"the service at {url} failed: {error or type(error).__name__}") from error


def checked(response: httpx.Response) -> Any:
    """The JSON of a response. Raises Refused with the service's message."""
    if response.is_error:
        raise Refused(_message(response))
    return response.json()


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """(event, data) of a stream. Raises Refused for an error, before or within it."""
    if response.is_error:
        response.read()
        raise Refused(_message(response))
    event = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
            if event == "error":
                raise Refused(data["error"]["message"])
            yield event, data


def _message(response: httpx.Response) -> str:
    try:
        content = response.json()
        message = content.get("detail") or content["error"]["message"]
    except (ValueError, KeyError, AttributeError, TypeError):
        message = response.text[:200] or response.reason_phrase
    return f"{message} (HTTP {response.status_code})"
