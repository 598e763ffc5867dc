"""Redis: killed, emptied, frozen, and its values changed under the service."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis as redis_client

from tests.trials.chaos.world import World

# Only what is there is changed: a deleted key stays deleted.
REPLACE = "if redis.call('exists', KEYS[1]) == 1 then redis.call('set', KEYS[1], ARGV[1]) end"
MAKE_LIST = (
    "if redis.call('exists', KEYS[1]) == 1 then redis.call('del', KEYS[1]) "
    "redis.call('rpush', KEYS[1], ARGV[1]) end"
)


def kill(world: World, chance: random.Random) -> None:
    """Kills in a row, up to a storm; it comes back empty each time."""
    for _ in range(chance.choice((4, 8, 40))):
        world.redis.stop()
        world.journal.count("kill of Redis")
        time.sleep(chance.uniform(0, 0.4))
        world.redis.start()
        time.sleep(chance.uniform(0.05, 0.6))


def away(world: World, chance: random.Random) -> None:
    """Gone for some seconds."""
    world.redis.stop()
    world.journal.count("kill of Redis")
    time.sleep(chance.uniform(1, 4))
    world.redis.start()


def freeze(world: World, chance: random.Random) -> None:
    """Its sockets stay open, and nothing answers."""
    world.redis.freeze()
    time.sleep(chance.uniform(0.2, 4))
    world.redis.thaw()
    world.journal.count("Redis frozen")


def flush(world: World, chance: random.Random) -> None:
    """Everything in it is gone at once."""
    with _client(world) as client:
        client.flushall()
    world.journal.count("Redis emptied")


def put_right(world: World) -> None:
    """It runs and answers, whatever an interrupted action left."""
    with contextlib.suppress(AssertionError):  # there is no process
        world.redis.thaw()
    with _client(world) as client:
        if client.ping():
            return
    world.redis.stop()
    world.redis.start()


def damage(world: World, chance: random.Random) -> None:
    """Values flipped, cut, exchanged, replaced by something else, or of another type."""
    with _client(world) as client:
        keys = sorted(client.scan_iter(count=1000))
        chance.shuffle(keys)
        for key, other in zip(keys[:20], keys[20:40], strict=False):
            _damage_one(client, chance, key, other)
            world.journal.count("damage in Redis")


def _damage_one(
    client: redis_client.Redis, chance: random.Random, key: bytes, other: bytes
) -> None:
    value = client.get(key) if client.type(key) == b"string" else b""
    if not isinstance(value, bytes):
        return
    kind = chance.randrange(5)
    if kind == 0 and value:
        position = chance.randrange(len(value))
        changed = value[:position] + bytes([value[position] ^ 1]) + value[position + 1 :]
        client.eval(REPLACE, 1, key, changed)
    elif kind == 1:
        client.eval(REPLACE, 1, key, value[: len(value) // 2])
    elif kind == 2:
        client.eval(REPLACE, 1, other, value)
    elif kind == 3:
        client.eval(REPLACE, 1, key, chance.randbytes(chance.randrange(200)))
    else:
        client.eval(MAKE_LIST, 1, key, "item")


@contextmanager
def _client(world: World) -> Iterator[redis_client.Redis]:
    client = redis_client.Redis.from_url(world.redis.url, socket_timeout=10)
    with contextlib.closing(client), contextlib.suppress(redis_client.RedisError):
        yield client
