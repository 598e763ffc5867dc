import time

import pytest

from kvstitch.kvstore import TierError
from kvstitch.kvstore.coordination import QueueLimits, WriteBehindQueue
from kvstitch.kvstore.fault_tolerant_tier import FaultTolerantTier
from kvstitch.kvstore.format.extra_tensors import encode_extra
from kvstitch.kvstore.tier_caller import BreakerSettings
from tests.kvstore.chunks import make_chunk, make_key
from tests.kvstore.fake_tier import FakeTier

CHUNK = make_chunk()


@pytest.fixture
def fake():
    return FakeTier()


@pytest.fixture
def guarded(fake):
    return FaultTolerantTier(fake, BreakerSettings())


def writer(guarded, limits=None):
    queue = WriteBehindQueue(guarded, limits or QueueLimits())
    queue.start()
    return queue


def blocked(fake, queue):
    """Start a write of key 0 on the thread that blocks until the tier is released."""
    fake.block("put")
    queue.submit(make_key(0), CHUNK)
    while fake.calls["put"] == 0:
        time.sleep(0.001)


def test_written_in_the_background(fake, guarded):
    queue = writer(guarded)
    for n in range(5):
        queue.submit(make_key(n), CHUNK)
    assert queue.flush(60) and queue.pending == 0
    assert set(fake.keys()) == {make_key(n) for n in range(5)}
    queue.close()


@pytest.mark.parametrize(
    "limits", [QueueLimits(items=3), QueueLimits(bytes=3 * CHUNK.nbytes)], ids=["items", "bytes"]
)
def test_a_full_queue_drops_the_oldest_and_counts(fake, guarded, limits):
    queue = writer(guarded, limits)
    blocked(fake, queue)
    for n in range(1, 7):
        queue.submit(make_key(n), CHUNK)
    assert (queue.dropped, queue.pending) == (3, 4)
    fake.release()
    assert queue.flush(60)
    assert set(fake.keys()) == {make_key(n) for n in (0, 4, 5, 6)}
    queue.close()


def test_the_same_write_waits_once(fake, guarded):
    queue = writer(guarded)
    blocked(fake, queue)
    for _ in range(3):
        queue.submit(make_key(0), CHUNK)
        queue.submit(make_key(1), CHUNK)
    assert queue.pending == 2 and queue.holds(make_key(1))
    fake.release()
    assert queue.flush(60) and fake.calls["put"] == 2
    queue.close()


def test_extra_tensors_that_wait_are_not_their_chunk(fake, guarded):
    queue = writer(guarded)
    blocked(fake, queue)
    for version in (1, 2):
        queue.submit(make_key(1), encode_extra("sketch", version, {}, key=make_key(1)))
    assert not queue.holds(make_key(1))
    queue.submit(make_key(1), CHUNK)
    assert queue.holds(make_key(1)) and queue.pending == 4
    fake.release()
    assert queue.flush(60) and fake.contains([make_key(1)])
    queue.close()


def test_discard_forgets_what_waits(fake, guarded):
    queue = writer(guarded)
    blocked(fake, queue)
    for n in (1, 2):
        queue.submit(make_key(n), CHUNK)
    queue.discard({make_key(1)})
    fake.release()
    assert queue.flush(60)
    assert set(fake.keys()) == {make_key(0), make_key(2)} and queue.dropped == 0
    queue.close()


def test_flush_gives_up(fake, guarded):
    queue = writer(guarded)
    blocked(fake, queue)
    assert not queue.flush(0.01)
    fake.release()
    queue.close()


def test_close_drops_what_does_not_go_and_counts(fake, guarded):
    queue = writer(guarded)
    blocked(fake, queue)
    queue.submit(make_key(1), CHUNK)
    assert not queue.flush(0.05)
    fake.release_when(lambda: queue.dropped == 1)
    queue.close()
    assert queue.dropped == 1 and set(fake.keys()) == {make_key(0)}


def test_a_failing_tier_does_not_stop_the_thread(fake, guarded):
    queue = writer(guarded)
    fake.fail("put", TierError("no"))
    queue.submit(make_key(0), CHUNK)
    assert queue.flush(60)
    fake.heal()
    queue.submit(make_key(1), CHUNK)
    assert queue.flush(60) and set(fake.keys()) == {make_key(1)}
    queue.close()
