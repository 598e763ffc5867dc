"""Against a real S3 server in its own process."""

import json
import threading
import time
from typing import Any

import pytest
import torch

from kvstitch.kvstore import (
    ChunkCorrupt,
    TieredStore,
    TierError,
    TierTimeout,
    TierUnavailable,
)
from kvstitch.kvstore.format.chunk import selection_ranges
from kvstitch.kvstore.tier_caller import BreakerSettings
from kvstitch_s3.bucket import Place, Waits
from kvstitch_s3.tier import S3Tier
from tests.kvstore.chunks import (
    chunk_file,
    gathered,
    make_chunk,
    make_key,
    make_spec,
    same_chunk,
)
from tests.kvstore.fake_tier import let_cool_down
from tests_s3.s3_server import BUCKET, ENVIRONMENT, s3_server

KEY = make_key()
OBJECT = f"kv/{KEY}/chunk.safetensors"


@pytest.fixture
def tier(s3_at):
    tier = S3Tier(s3_at.place())
    tier.start()
    yield tier
    tier.close()


def rewrite(server, change, name=OBJECT):
    """Replace an object's bytes by what `change` makes of them."""
    client = server.client()
    content = bytearray(client.get_object(Bucket=BUCKET, Key=name)["Body"].read())
    client.put_object(Bucket=BUCKET, Key=name, Body=bytes(change(content)))


def flipped(at):
    def change(content):
        content[at] ^= 4
        return content

    return change


def test_an_object_is_the_same_file_as_on_ssd(tier, s3_at):
    chunk = make_chunk()
    tier.put(KEY, chunk)
    stored = s3_at.client().get_object(Bucket=BUCKET, Key=OBJECT)["Body"].read()
    assert stored == chunk_file(chunk)
    tier.put_extra(KEY, "sketch", chunk.data[:50])
    listed = s3_at.client().list_objects_v2(Bucket=BUCKET)["Contents"]
    assert {one["Key"] for one in listed} == {OBJECT, f"kv/{KEY}/sketch.extra"}


def test_a_large_chunk_comes_in_parts_and_in_order(tier, monkeypatch):
    monkeypatch.setattr("kvstitch_s3.tier._PART", 20_000)
    chunk = make_chunk(make_spec(layers=6, tokens=1000))
    tier.put(KEY, chunk)
    done = []

    def listen(header, data, count):
        done.append(count)
        assert torch.equal(data[:count], chunk.data[:count])

    assert same_chunk(tier.read(KEY, listen), chunk)
    assert len(done) > 10 and done == sorted(done) and done[-1] == chunk.header.nbytes
    picked = {0: (0, 3, 15), 2: (1,), 5: (0, 1, 2, 14)}
    ranges = selection_ranges(picked, chunk.spec)
    assert torch.equal(tier.read_ranges(KEY, chunk.header, ranges), gathered(chunk, picked))


@pytest.mark.parametrize("part", [16, 100, 4000])
def test_a_header_longer_than_the_first_part(tier, monkeypatch, part):
    monkeypatch.setattr("kvstitch_s3.tier._PART", part)
    monkeypatch.setattr("kvstitch_s3.tier._HEAD", part)
    chunk = make_chunk(make_spec(layers=1, tokens=70))
    tier.put(KEY, chunk)
    assert tier.read_header(KEY) == chunk.header
    if part == 4000:
        assert same_chunk(tier.read(KEY), chunk)


def test_ranges_move_few_bytes(s3_at):
    """Far-apart ranges are requests of their own, close ones share one."""
    chunk = make_chunk(make_spec(layers=4, tokens=20_000))
    tier = S3Tier(s3_at.place())
    tier.start()
    tier.put(KEY, chunk)
    asked = []
    bucket: Any = tier._bucket
    read = bucket.read

    def counted(path, start, end, version=None):
        asked.append(end - start)
        return read(path, start, end, version)

    bucket.read = counted
    picked = {0: (0, 2), 3: (300,)}
    got = tier.read_ranges(KEY, chunk.header, selection_ranges(picked, chunk.spec))
    assert got is not None and torch.equal(got, gathered(chunk, picked))
    assert len(asked) == 4, "k and v of layer 0, k and v of layer 3"
    assert sum(asked) < got.numel() + 2 * 4096 < chunk.nbytes / 50
    tier.close()


def test_the_first_writer_stays(tier):
    tier.put(KEY, make_chunk(seed=0))
    tier.put(KEY, make_chunk(seed=1))
    assert same_chunk(tier.read(KEY), make_chunk(seed=0))


def test_a_chunk_that_is_replaced_while_it_is_read_is_a_miss(tier, s3_at, monkeypatch):
    """Never the beginning of one and the end of another."""
    monkeypatch.setattr("kvstitch_s3.tier._PART", 10_000)
    spec = make_spec(layers=6, tokens=1000)
    tier.put(KEY, make_chunk(spec))
    other = make_chunk(spec, seed=1)
    read = tier._bucket.read
    calls: list[str] = []

    def replacing(path, start, end, version=None):
        part = read(path, start, end, version)
        if not calls:
            calls.append(path)
            s3_at.client().put_object(Bucket=BUCKET, Key=OBJECT, Body=chunk_file(other))
        return part

    tier._bucket.read = replacing
    assert tier.read(KEY) is None
    tier._bucket.read = read
    assert same_chunk(tier.read(KEY), other)


@pytest.mark.parametrize(
    "change",
    [flipped(3), flipped(100), flipped(-1), lambda c: c[:-1], lambda c: c[:700], lambda c: b"",
     lambda c: c + b"x"],
    ids=["length", "header", "data", "short", "header only", "empty", "long"],
)  # fmt: skip
def test_a_damaged_object_is_found_and_replaced(s3_at, change):
    chunk = make_chunk().under(KEY)
    with TieredStore([S3Tier(s3_at.place())]) as store:
        store.put(KEY, chunk)
        assert store.flush(60)
        rewrite(s3_at, change)
        outcome = store.read(KEY, chunk.spec)
        assert outcome.chunk is None and outcome.problems == (("s3", "corrupt"),)
        assert not store.contains([KEY]), "the bad copy is deleted"
        store.put(KEY, chunk)
        assert store.flush(60) and same_chunk(store.read(KEY).chunk, chunk)
        assert store.stats().tier("s3").healthy


def test_damaged_blocks_and_extras_are_found(s3_at):
    chunk = make_chunk(make_spec(tokens=300)).under(KEY)
    with TieredStore([S3Tier(s3_at.place())]) as store:
        store.put(KEY, chunk)
        assert store.flush(60)
        assert store.put_extra(KEY, "sketch", 1, {"mean": torch.arange(9)}) and store.flush(60)
        kept = store.read_extra(KEY, "sketch", 1)
        assert kept is not None and torch.equal(kept.tensors["mean"], torch.arange(9))
        rewrite(s3_at, flipped(-1), f"kv/{KEY}/sketch.extra")
        assert store.read_extra(KEY, "sketch", 1) is None
        rewrite(s3_at, flipped(chunk.header.data_start))
        outcome = store.read_blocks(KEY, {0: [0, 1]}, chunk.spec)
        assert outcome.missing == {0: (0,)} and outcome.blocks is not None
        assert outcome.blocks.layers[0].blocks == (1,)


def test_objects_of_somebody_else_are_no_keys(tier, s3_at):
    tier.put(KEY, make_chunk())
    for name in ("kv/notes.txt", "kv/x/chunk.safetensors", f"kv/{KEY}/more/chunk.safetensors",
                 f"other/{make_key(1)}/chunk.safetensors"):  # fmt: skip
        s3_at.client().put_object(Bucket=BUCKET, Key=name, Body=b"x")
    assert list(tier.keys()) == [KEY]
    assert tier.delete([KEY, make_key(1)]) == 1
    left = {one["Key"] for one in s3_at.client().list_objects_v2(Bucket=BUCKET)["Contents"]}
    assert {"kv/notes.txt", "kv/x/chunk.safetensors"} < left


def test_an_extra_whose_chunk_is_deleted_meanwhile_is_not_left_behind(tier, s3_at):
    tier.put(KEY, make_chunk())
    replace = tier._bucket.replace

    def after_a_delete(path, content):
        tier.delete([KEY])
        replace(path, content)

    tier._bucket.replace = after_a_delete
    assert not tier.put_extra(KEY, "sketch", make_chunk().data)
    assert "Contents" not in s3_at.client().list_objects_v2(Bucket=BUCKET)


def test_wrong_and_missing_credentials(monkeypatch):
    """A server that checks signatures: its own client's, and ours."""
    with s3_server(unchecked=4) as server:
        iam = server.client(service="iam")
        iam.create_user(UserName="kv")
        made = iam.create_access_key(UserName="kv")["AccessKey"]
        everything = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
        iam.put_user_policy(UserName="kv", PolicyName="s3", PolicyDocument=policy)
        server.client().create_bucket(Bucket=BUCKET)  # the fourth, the last that is not checked
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", made["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", made["SecretAccessKey"])
        right = S3Tier(server.place())
        right.start()
        right.put(KEY, make_chunk())
        assert same_chunk(right.read(KEY), make_chunk())
        assert list(right.keys()) == [KEY] and right.contains([KEY]) == {KEY}
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        wrong = S3Tier(server.place())
        wrong.start()
        for call in (
            lambda: wrong.read(KEY),
            lambda: wrong.contains([KEY]),
            lambda: wrong.put(make_key(1), make_chunk()),
            lambda: wrong.delete([KEY]),
        ):
            with pytest.raises(TierUnavailable) as caught:
                call()
            assert "wrong" not in str(caught.value)
        assert right.delete([KEY]) == 1
        right.close()
        wrong.close()


def test_a_bucket_that_does_not_exist(s3_at):
    tier = S3Tier(Place("s3://no-such-bucket/x", s3_at.endpoint))
    tier.start()
    for call in (lambda: tier.read(KEY), lambda: tier.put(KEY, make_chunk())):
        with pytest.raises(TierError, match=r"no-such-bucket.* is missing"):
            call()
    tier.close()


@pytest.mark.parametrize("url", ["bucket", "http://bucket/x", "s3:///x", "s3://"])
def test_bad_urls(url):
    with pytest.raises(TierError, match="bad S3 URL"):
        S3Tier(Place(url)).start()


def test_killed_frozen_and_started_again(monkeypatch):
    """One timeout, then the breaker: the others do not wait, and it is found again by itself."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    chunks = {make_key(n): make_chunk(seed=n) for n in range(8)}
    with s3_server() as server:
        tier = S3Tier(server.place(), waits=Waits(silence=2))
        with TieredStore([tier], breaker=BreakerSettings(cooldown_s=600)) as store:
            for key, chunk in chunks.items():
                store.put(key, chunk)
            assert store.flush(60)
            wrong: list[str] = []
            killed = threading.Event()

            def work() -> None:
                while not killed.is_set():
                    for key, chunk in chunks.items():
                        got = store.read(key).chunk
                        if got is not None and not same_chunk(got, chunk):
                            wrong.append(key)

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.2)
            server.stop()
            give_up_at = time.monotonic() + 120
            while store.stats().tier("s3").healthy and time.monotonic() < give_up_at:
                time.sleep(0.01)  # three failed reads, each of which tries again a few times
            killed.set()
            for thread in threads:
                thread.join(120)
            assert not wrong and not store.stats().tier("s3").healthy
            server.start()
            let_cool_down(store)
            assert store.read(KEY).problems == (), "empty now: a plain miss"
            store.put(KEY, chunks[KEY])
            assert store.flush(60) and same_chunk(store.read(KEY).chunk, chunks[KEY])
            server.freeze()
            assert store.read(KEY).problems == (("s3", "timeout"),)
            assert store.read(KEY).problems == (("s3", "unavailable"),)
            server.thaw()
            let_cool_down(store)
            assert same_chunk(store.read(KEY).chunk, chunks[KEY])


def test_the_deadline_of_a_read(s3_at, monkeypatch):
    monkeypatch.setattr("kvstitch_s3.tier._PART", 10_000)
    tier = S3Tier(s3_at.place(), deadline_s=-1)
    tier.start()
    chunk = make_chunk(make_spec(tokens=1000))
    tier.put(KEY, chunk)
    with pytest.raises(TierTimeout, match="took over"):
        tier.read(KEY)
    with pytest.raises(TierTimeout, match="took over"):
        tier.read_ranges(KEY, chunk.header, selection_ranges({0: (0,)}, chunk.spec))
    tier.close()


def test_a_server_that_is_away_delays_no_start():
    tier = S3Tier(Place("s3://b/x", "http://127.0.0.1:1"))
    tier.start()
    with pytest.raises(TierUnavailable):
        tier.read(KEY)
    tier.close()


def test_a_chunk_that_cannot_be_a_chunk_is_corrupt(tier, s3_at):
    s3_at.client().put_object(Bucket=BUCKET, Key=OBJECT, Body=b"x" * 1000)
    with pytest.raises(ChunkCorrupt):
        tier.read_header(KEY)
