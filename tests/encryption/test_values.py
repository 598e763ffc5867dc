"""Sealed values, and the keys that open them."""

from __future__ import annotations

import os

import pytest

from kvstitch.encryption import keyring
from kvstitch.encryption.aead import SEALED_BYTES, is_sealed, open_sealed, place, seal
from kvstitch.encryption.keyring import KEY_ID_BYTES, DataKey, KeyMissing, Keyring, SealBroken

KEY = DataKey(os.urandom(16), "a", os.urandom(32))
RING = Keyring([KEY, DataKey(os.urandom(16), "b", os.urandom(32))])
HERE, THERE = place("documents.text", "d", 1), place("documents.text", "d", 2)


@pytest.mark.parametrize("plain", [b"", b"x", os.urandom(5000)])
def test_a_value_comes_back(plain: bytes) -> None:
    sealed = seal(KEY, plain, HERE)
    assert is_sealed(sealed) and len(sealed) == len(plain) + SEALED_BYTES
    assert open_sealed(RING, sealed, HERE) == plain


def test_places_do_not_run_into_each_other() -> None:
    assert len({place("ab", "c"), place("a", "bc"), place("abc"), place("a", "b", "c")}) == 4


def test_a_changed_bit_or_another_place_does_not_open() -> None:
    sealed = bytearray(seal(KEY, b"words", HERE))
    with pytest.raises(SealBroken):
        open_sealed(RING, bytes(sealed), THERE)
    for at in [*range(20, len(sealed))]:
        sealed[at] ^= 1
        with pytest.raises(SealBroken):
            open_sealed(RING, bytes(sealed), HERE)
        sealed[at] ^= 1
    assert open_sealed(RING, bytes(sealed), HERE) == b"words"


def test_one_value_twice_shares_nothing() -> None:
    one, two = (seal(KEY, bytes(64), HERE)[20:] for _ in range(2))
    assert one[:24] != two[:24]  # salts, so keys
    assert not {one[n : n + 8] for n in range(24, 80)} & {two[n : n + 8] for n in range(24, 80)}


def test_a_key_that_is_gone() -> None:
    with pytest.raises(KeyMissing, match="not here"):
        open_sealed(Keyring(), seal(KEY, b"x", HERE), HERE)


def test_a_ring_asks_once_for_a_key_that_it_does_not_know() -> None:
    asked: list[int] = []

    def reload() -> list[DataKey]:
        asked.append(1)
        return [KEY]

    ring = Keyring(reload=reload)
    assert open_sealed(ring, seal(KEY, b"x", HERE), HERE) == b"x"
    assert open_sealed(ring, seal(KEY, b"x", HERE), HERE) == b"x" and len(asked) == 1


def test_the_newest_key_of_an_owner_seals() -> None:
    newer = DataKey(os.urandom(16), "a", os.urandom(32))
    ring = Keyring([KEY, newer, DataKey(os.urandom(16), "b", os.urandom(32))])
    assert ring.current("a") == newer
    with pytest.raises(KeyMissing, match="'nobody'"):
        ring.current("nobody")


def test_nothing_is_sealed_under_a_key_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "FRESH_S", 0.0)
    old, new = (DataKey(bytes([n]) * KEY_ID_BYTES, "a", bytes([n]) * 32) for n in (1, 2))
    there = [old]
    ring = Keyring(reload=lambda: list(there))
    assert ring.current("a") == old
    there[:] = [new]
    version = ring.version
    assert ring.current("a") == new and ring.version > version
