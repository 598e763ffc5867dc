"""Asks every server the same."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kvstore.errors import TierError
from kvstore.tiers.redis.redis_server import RedisServer

T = TypeVar("T")


def survey(
    servers: Sequence[RedisServer], ask: Callable[[Any], T]
) -> tuple[list[T], TierError | None]:
    """What each server answered, and the last error of those that did not."""
    answers: list[T] = []
    failed: TierError | None = None
    for server in servers:
        try:
            with server.session() as client:
                answers.append(ask(client))
        except TierError as error:
            failed = error
    return answers, failed
