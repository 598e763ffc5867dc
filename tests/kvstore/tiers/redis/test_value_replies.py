"""Replies over a socket pair, split at any place."""

import contextlib
import itertools
import random
import socket
import threading
import time

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import BusyLoadingError, InvalidResponse, RedisError, ResponseError

from kvstitch.kvstore.tiers.redis.redis_server import ValueReplies, _packed
from tests.kvstore.tiers.redis.fake_redis import bulk


@contextlib.contextmanager
def receiving(sent: bytes, cuts=(), *, close=False, deadline=30.0, pause=0.0, silence_s=10.0):
    """Replies of a peer that sends these bytes, in pieces that end at the cuts."""
    ours, theirs = socket.socketpair()
    ours.settimeout(silence_s)
    borders = [0, *sorted(cuts), len(sent)]

    def send():
        with contextlib.suppress(OSError):  # ours has had enough
            for start, end in itertools.pairwise(borders):
                theirs.sendall(sent[start:end])
                time.sleep(pause)
        if close:
            theirs.close()

    thread = threading.Thread(target=send)
    thread.start()
    with ours, theirs:
        yield ValueReplies(connected(ours), time.monotonic() + deadline)
        thread.join(240)


def connected(ours):
    """A connection of redis-py over this socket."""
    connection = redis.Connection()
    connection._sock = ours
    return connection


def values(replies, targets, progress=None):
    """Fill each place with a value. The number and length of the first that is not as expected."""
    done = 0
    for number, target in enumerate(targets):
        nbytes = replies.fill(target)
        if nbytes != len(target):
            return number, nbytes
        done += nbytes
        if progress is not None:
            progress(done)
    return None


def places(*sizes):
    return [bytearray(b"\xee" * size) for size in sizes]


def views(buffers):
    return [memoryview(buffer) for buffer in buffers]


def values_of(sizes, seed=0):
    rng = random.Random(seed)
    return [rng.randbytes(size) for size in sizes]


def test_commands():
    words = ("GET", "a:ä", 12)
    assert _packed(words) == b"*3\r\n$3\r\nGET\r\n$4\r\na:\xc3\xa4\r\n$2\r\n12\r\n"


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40) | st.sampled_from([99, 100, 5000]), min_size=1, max_size=150),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    flags=st.lists(st.booleans(), max_size=5),
)
def test_every_value_lands_in_its_place_however_the_stream_is_cut(sizes, cuts, flags):
    wanted = values_of(sizes)
    sent = b"".join(map(bulk, wanted)) + b"".join(b":%d\r\n" % flag for flag in flags)
    buffers, seen = places(*sizes), []
    with receiving(sent, [int(cut * len(sent)) for cut in cuts]) as replies:
        replies._expected = len(sizes) + len(flags)
        joined = b"".join(wanted)

        def progress(done):
            assert b"".join(map(bytes, buffers))[:done] == joined[:done]
            seen.append(done)

        assert values(replies, views(buffers), progress) is None
        replies.flags(len(flags))
        assert replies.complete
    assert list(map(bytes, buffers)) == wanted
    assert seen == sorted(seen) and seen[-1] == sum(sizes)


WRONG = {
    "nil": (b"$-1\r\n", None),
    "empty": (b"$0\r\n\r\n", 0),
    "shorter": (bulk(b"ab"), 2),
    "longer": (bulk(b"abcdef"), 6),
    "much longer": (bulk(b"x" * 100_000), 100_000),
}


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("dribble", [False, True])
def test_the_first_value_that_is_not_as_expected(what, number, dribble):
    """The fault is found though nothing more comes; waiting for more ends in a TimeoutError."""
    reply, nbytes = WRONG[what]
    replies_sent = [bulk(b"12345"), bulk(b"12345"), bulk(b"12345")]
    replies_sent[number] = reply
    sent = b"".join(replies_sent[: number + 1])
    cuts = range(min(len(sent), 60)) if dribble else ()
    with receiving(sent, cuts) as replies:
        replies._expected = 3
        found = values(replies, views(places(5, 5, 5)))
        assert found == (number, nbytes)
        assert replies.complete == (nbytes is None and number == 2), "else the rest is to come"
        replies._connection._sock.shutdown(socket.SHUT_RD)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", BusyLoadingError, "^Redis is"),
        (b"-WRONGTYPE x\r\n", ResponseError, "WRONGTYPE x$"),
        (b"+OK\r\n", InvalidResponse, "OK"),
        (b":1\r\n", InvalidResponse, "1"),
        (b">2\r\n+a\r\n+b\r\n", InvalidResponse, "2"),
        (b"$abc\r\n", InvalidResponse, "abc"),
        (b"$\r\n", InvalidResponse, "not a reply"),
        (b"$99999999999999999999\r\n", InvalidResponse, "a value of"),
        (b"x" * 5000, InvalidResponse, "without end"),
    ],
)
def test_errors_and_nonsense(reply, error, text, number):
    with receiving(bulk(b"12345") * number + reply) as replies:
        replies._expected = 2
        with pytest.raises(error, match=text):
            values(replies, views(places(5, 5)))
        assert not replies.complete


def test_a_value_that_does_not_end_where_it_says():
    no_end = pytest.raises(InvalidResponse, match="does not end")
    with receiving(b"$5\r\n12345xx$5\r\n12345\r\n") as replies, no_end:
        values(replies, views(places(5, 5)))
    with receiving(b"$5\r\n12345xx") as replies, no_end:
        replies.value()


@pytest.mark.parametrize("at", [0, 3, 6, 9, 11, 20])
def test_a_connection_that_ends_or_falls_silent_midway(at):
    sent = (bulk(b"12345") + bulk(b"67890"))[:at]
    with receiving(sent, close=True) as replies, pytest.raises(ConnectionError):
        values(replies, views(places(5, 5)))
    with receiving(sent, silence_s=0.2) as replies, pytest.raises(TimeoutError):
        values(replies, views(places(5, 5)))


def test_a_dribbling_server_meets_the_deadline():
    """Every single byte comes in time, but the whole reply does not."""
    sent = bulk(b"x" * 200)
    with (
        receiving(sent, range(len(sent)), deadline=0.1, pause=0.002) as replies,
        pytest.raises(TimeoutError, match="deadline"),
    ):
        values(replies, views(places(200)))


@settings(max_examples=50, deadline=None)
@given(value=st.none() | st.binary(max_size=70_000), cuts=st.lists(st.floats(0, 1), max_size=5))
def test_one_value_of_unknown_length(value, cuts):
    sent = bulk(value)
    with receiving(sent, [int(cut * len(sent)) for cut in cuts]) as replies:
        replies._expected = 1
        assert replies.value() == value and replies.complete


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b":1\r\n-READONLY You can't write\r\n", RedisError),
        (b"-NOPERM x\r\n:1\r\n", RedisError),
        (b":1\r\n:12\r\n:1\r\n", InvalidResponse),
        (b"+OK\r\n:1\r\n:1\r\n", InvalidResponse),
        (b":1\r\n:0\r\n", TimeoutError),
    ],
)
def test_flags_that_are_none(sent, error):
    with receiving(sent, silence_s=0.2 if error is TimeoutError else 10.0) as replies:
        replies._expected = 3
        with pytest.raises(error):
            replies.flags(3)
        assert not replies.complete


REPLY_BYTES = st.lists(
    st.sampled_from(
        [b"$", b"-", b":", b"_", b"*", b"\r", b"\n", b"\r\n", b"$-1\r\n", b"$5\r\nhello\r\n"]
    )
    | st.binary(max_size=6)
    | st.integers(-9, 10**12).map(lambda n: b"$%d\r\n" % n),
    max_size=12,
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(sent=REPLY_BYTES, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_any_bytes_are_a_reply_or_an_error(sent, sizes):
    """Nothing hangs, and no memory is taken for a length that only the peer claims to send."""
    faults = (RedisError, InvalidResponse, TimeoutError, OSError)
    for read in (
        lambda replies: replies.value(),
        lambda replies: values(replies, views(places(*sizes))),
        lambda replies: replies.flags(len(sizes)),
    ):
        with receiving(sent, close=True) as replies:
            replies._expected = len(sizes)
            with contextlib.suppress(*faults):
                read(replies)
