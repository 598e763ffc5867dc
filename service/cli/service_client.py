"""An HTTP client for a running service: its errors, pages and event streams."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from service.errors import KvstitchError

PAGE = 200


class CommandError(KvstitchError):
    """Ends a command: the service's own error, no service, or unusable input.

    Attributes:
        code: The service's code, "unreachable", or "refused".
        http_status: None if nothing answered.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "refused",
        field: str | None = None,
        retry_after_s: float | None = None,
        http_status: int | None = None,
    ) -> None:
        super().__init__(message, field=field, retry_after_s=retry_after_s)
        self.code = code
        self.http_status = http_status


class WrongArgument(CommandError):
    """What was given on the command line cannot be meant: exit code 2."""


@contextmanager
def client(args: argparse.Namespace) -> Iterator[httpx.Client]:
    """A client for the service at --url, with --api-key or KVSTITCH_API_KEY.

    Raises:
        CommandError: The service cannot be reached; the message says what to do.
    """
    key = (args.api_key or os.environ.get("KVSTITCH_API_KEY", "")).strip()
    if not (key.isascii() and key.isprintable()):
        raise WrongArgument(
            "the API key has characters that no key has: copy it again", code="bad_key"
        )
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(600.0, connect=5.0)
    try:
        with httpx.Client(base_url=args.url, headers=headers, timeout=timeout) as http:
            yield http
    except httpx.ConnectError:
        raise CommandError(
            f"no service answers at {args.url}: start one with `kvstitch serve`, or give --url",
            code="unreachable",
        ) from None
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise WrongArgument(f"{args.url} is not a URL: {error}") from None
    except httpx.HTTPError as error:
        raise CommandError(
            f"the service at {args.url} failed: {error or type(error).__name__}",
            code="unreachable",
        ) from error


def checked(response: httpx.Response) -> Any:
    """The JSON of a response.

    Raises:
        CommandError: The response is an error, or not JSON.
    """
    if response.is_error:
        raise error_of(response)
    try:
        return response.json()
    except ValueError:
        raise CommandError(
            f"{response.request.url} answered, but not as kvstitch does: is --url right?"
        ) from None


def pages(
    http: httpx.Client, path: str, name: str, limit: int | None, **query: Any
) -> Iterator[dict[str, Any]]:
    """Yields the items of a list that comes in pages.

    Args:
        http: The client.
        path: Of the list.
        name: The field of a page that holds the items.
        limit: Most items; None: all.
        **query: Query parameters; None: left out.
    """
    left, cursor = limit, None
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        wanted = {**query, "limit": size, "cursor": cursor}
        args = {key: value for key, value in wanted.items() if value is not None}
        page = checked(http.get(path, params=args))
        yield from page[name]
        cursor = page["next_cursor"]
        if cursor is None:
            return
        left = None if left is None else left - len(page[name])


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Yields (event, data) of a stream.

    Raises:
        CommandError: An error came before the stream or in it.
    """
    if response.is_error:
        response.read()
        raise error_of(response)
    event = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
            if event == "error":
                error = data["error"]
                raise CommandError(error["message"], code=error["code"], field=error["param"])
            yield event, data


def error_of(response: httpx.Response) -> CommandError:
    """The error in a response whose body has been read."""
    code, field, message = "refused", None, ""
    try:
        content = response.json()
        error = content.get("error") or content
        message = error.get("detail") or error.get("message") or ""
        code = error.get("code") or code
        field = error.get("field") or error.get("param")
    except (ValueError, AttributeError):
        pass
    message = message or response.text[:200] or response.reason_phrase
    after = response.headers.get("retry-after", "")
    return CommandError(
        f"{message} (HTTP {response.status_code})",
        code=code,
        field=field,
        retry_after_s=float(after) if after.isdigit() else None,
        http_status=response.status_code,
    )
