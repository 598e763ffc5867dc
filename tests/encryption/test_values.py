"""Sealed values, files and words."""

from __future__ import annotations

import io
import os

import pytest

from encryption import keyring
from encryption.blind_words import BlindWords
from encryption.errors import KeyMissing, SealBroken
from encryption.keyring import KEY_ID_BYTES, DataKey, Keyring
from encryption.sealed_files import SEGMENT_BYTES, FileSealer, open_file, seal_file
from encryption.values import (
    SEALED_BYTES,
    is_sealed,
    is_sealed_text,
    open_sealed,
    open_text,
    place,
    seal,
    seal_text,
)

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


def test_texts() -> None:
    for text in ("", "plain", "Ünï 漢字 👍\n"):
        sealed = seal_text(KEY, text, HERE)
        assert is_sealed_text(sealed) is bool(text) and (not text or text not in sealed)
        assert open_text(RING, sealed, HERE) == text
    assert open_text(RING, "stored before there were keys", HERE) == "stored before there were keys"


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


def test_the_newest_key_seals_and_words_have_their_own() -> None:
    words = DataKey(os.urandom(16), "a", os.urandom(32), "words")
    newer = DataKey(os.urandom(16), "a", os.urandom(32))
    ring = Keyring([KEY, words, newer])
    assert ring.current("a") == newer and ring.current("a", "words") == words
    with pytest.raises(KeyMissing, match="'nobody'"):
        ring.current("nobody")


@pytest.mark.parametrize(
    "size", [0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES]
)
def test_files(size: int) -> None:
    content = os.urandom(size)
    sealer, sealed = FileSealer(KEY, HERE), bytearray()
    for at in range(0, size, 300_007):
        sealed += sealer.update(content[at : at + 300_007])
    sealed += sealer.finish()
    assert open_file(RING, io.BytesIO(sealed), HERE) == content
    assert size < 32 or content[:32] not in sealed
    with pytest.raises(SealBroken):
        open_file(RING, io.BytesIO(sealed), THERE)


def test_a_file_that_was_cut_or_whose_segments_were_swapped() -> None:
    sealed = seal_file(KEY, os.urandom(3 * SEGMENT_BYTES), HERE)
    step, head = SEGMENT_BYTES + 16, 44
    first, second, third = (sealed[head + n * step : head + (n + 1) * step] for n in range(3))
    for parts in ((first, second), (second, first, third), (first, third), (first, second[:-1])):
        with pytest.raises(SealBroken):
            open_file(RING, io.BytesIO(sealed[:head] + b"".join(parts)), HERE)
    with pytest.raises(SealBroken):
        open_file(RING, io.BytesIO(sealed[: head - 1]), HERE)
    assert open_file(RING, io.BytesIO(b"in the clear" * 9), HERE) == b"in the clear" * 9


def test_blind_words() -> None:
    one, other = (BlindWords(os.urandom(32), lambda word: word[0] == "字") for _ in range(2))
    assert one.word("fox") == one.word("fox") != one.word("foxes")
    assert one.word("fox") != other.word("fox")
    assert one.word("fox").isalnum() and one.word("fox").isascii()
    assert one.word("字典").startswith(one.start("字"))
    assert not one.word("fox").startswith(one.start("fox"))
    assert one.word("字典") != one.word("字形")


def test_nothing_is_sealed_under_a_key_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "FRESH_S", 0.0)
    old, new = (DataKey(bytes([n]) * KEY_ID_BYTES, "a", bytes([n]) * 32) for n in (1, 2))
    there = [old]
    ring = Keyring(reload=lambda: list(there))
    assert ring.current("a") == old
    there[:] = [new]
    version = ring.version
    assert ring.current("a") == new and ring.version > version
