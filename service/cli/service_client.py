"""The client that commands ask a running service with, and the errors that end a command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from kvstitch.client import Client, errors
from service.errors import InvalidRequest, KvstitchError


class CommandError(KvstitchError):
    """Ends a command: the service's own error, no service, or unusable input."""

    def __init__(self, message: str, *, code: str = "refused", field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.code = code


class WrongArgument(CommandError):
    """What was given on the command line cannot be meant: exit code 2."""


@contextmanager
def client(args: argparse.Namespace, *, timeout_s: float = 600.0) -> Iterator[Client]:
    """Yield a client of the service at --url, with --api-key or KVSTITCH_API_KEY."""
    found = Client(args.url, api_key=args.api_key, timeout_s=timeout_s, max_retries=0)
    with found:
        yield found


def message_of(error: errors.KvstitchError) -> str:
    """Return what an error says, with the status that the service answered."""
    return error.message if error.status is None else f"{error.message} (HTTP {error.status})"


def as_command_error(error: errors.KvstitchError) -> CommandError:
    """Return the error of the client as the command line tells it."""
    if isinstance(error, errors.UnexpectedResponse):
        return CommandError(error.message)
    if isinstance(error, errors.ServiceError):
        # Without a code it is the client's own: what was given cannot be sent.
        given = error.code is None or error.status == InvalidRequest.status
        kind = WrongArgument if given else CommandError
        return kind(message_of(error), code=error.code or "refused", field=error.field)
    if isinstance(error.__cause__, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return WrongArgument(f"--url is not a URL: {error.__cause__}")
    hint = (
        ""
        if isinstance(error, errors.TimedOut)
        else " Start one with `kvstitch serve`, or give --url."
    )
    return CommandError(f"{error.message}{hint}", code="unreachable")
