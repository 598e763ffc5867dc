from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer, redis_server


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def redis_at(shared_redis: RedisServer) -> RedisServer:
    """A running, empty server; tests that stop or freeze one start their own."""
    import redis

    with redis.Redis.from_url(shared_redis.url) as client:
        client.flushall()
    return shared_redis
