from collections.abc import Iterator

import pytest

from tests.kvstore.fake_tier import FakeTier
from tests.kvstore.places import Place
from tests.redis_cluster import RedisCluster, redis_cluster
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


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[RedisCluster]:
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RedisCluster) -> RedisCluster:
    """An empty Redis Cluster that is whole."""
    shared_cluster.wait_until_whole()
    shared_cluster.flush()
    return shared_cluster


@pytest.fixture(params=["memory", "ssd", "redis"])
def place(request, tmp_path, redis_at) -> Place:
    """Each real tier in turn."""
    return Place(request.param, tmp_path, redis_at.url)


@pytest.fixture
def near() -> FakeTier:
    return FakeTier("near", kind="disk")


@pytest.fixture
def far() -> FakeTier:
    return FakeTier("far", kind="shared")
