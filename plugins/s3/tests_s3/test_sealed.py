"""Chunks that a bucket keeps encrypted."""

from __future__ import annotations

import pytest

from kvstitch.encryption.keyring import Keyring
from kvstitch.kvstore import TieredStore
from kvstitch_s3.tier import S3Tier
from tests.kvstore.chunks import make_chunk, make_key, make_spec
from tests.kvstore.test_sealed import (
    SKETCH,
    MakeTier,
    keys,
    pieces_of,
    test_a_copy_is_sealed_for_its_owner,
    test_after_a_rotation_old_chunks_are_read,
    test_nothing_is_written_in_the_clear_for_want_of_a_key,
    test_what_is_locked_is_replaced_by_what_its_owner_stores_again,
    test_what_was_sealed_is_read,
    test_without_encryption_what_is_locked_is_never_replaced,
    test_without_its_key_a_chunk_is_locked_and_stays,
)
from tests_s3.s3_server import BUCKET, S3Server

__all__ = [
    "keys",
    "test_a_copy_is_sealed_for_its_owner",
    "test_after_a_rotation_old_chunks_are_read",
    "test_nothing_is_written_in_the_clear_for_want_of_a_key",
    "test_what_is_locked_is_replaced_by_what_its_owner_stores_again",
    "test_what_was_sealed_is_read",
    "test_without_encryption_what_is_locked_is_never_replaced",
    "test_without_its_key_a_chunk_is_locked_and_stays",
]


@pytest.fixture
def make_tier(s3_at: S3Server) -> MakeTier:
    return lambda: S3Tier(s3_at.place())


def test_objects_hold_no_plain_bytes(make_tier: MakeTier, s3_at: S3Server, keys: Keyring) -> None:
    chunk, key = make_chunk(make_spec(tokens=150)), make_key()
    sketch = bytes(SKETCH["mean"].numpy())[20:60]

    def held() -> bytes:
        """All objects, as Amazon's own client reads them."""
        client = s3_at.client()
        names = [one["Key"] for one in client.list_objects_v2(Bucket=BUCKET)["Contents"]]
        return b"".join(client.get_object(Bucket=BUCKET, Key=n)["Body"].read() for n in names)

    for keyring, plain in ((keys, False), (Keyring(active=False), True)):
        s3_at.empty()
        with TieredStore([make_tier()], keys=keyring) as store:
            store.put(key, chunk, "a")
            store.put_extra(key, "sketch", 1, SKETCH, "a")
            store.flush()
        objects = held()
        assert {piece in objects for piece in (*pieces_of(chunk), sketch)} == {plain}
