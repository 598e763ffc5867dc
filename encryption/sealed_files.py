"""Sealed files of any length, written and read in segments.

    magic 4 | key id 16 | salt 24 | segment | segment | ...       each with a tag of 16 bytes

Every segment but the last holds 1 MiB. Its nonce is its number and whether it is the last, so
segments cannot be left out, swapped or cut off (STREAM).

Source:
    Hoang, Reyhanitabar, Rogaway, Vizár: "Online Authenticated-Encryption and its Nonce-Reuse
    Misuse-Resistance", CRYPTO 2015.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from encryption.aead import SALT_BYTES, TAG_BYTES, decrypt, message_cipher, new_salt, nonce
from encryption.errors import SealBroken
from encryption.keyring import KEY_ID_BYTES, DataKey, Keyring

MAGIC = b"KVF1"
SEGMENT_BYTES = 1 << 20
HEAD_BYTES = len(MAGIC) + KEY_ID_BYTES + SALT_BYTES
_LAST = 1 << 64


class FileSealer:
    """Seals one file as its bytes come in.

    Args:
        key: of its owner.
        where: the file's place (see `values.place`).
    """

    def __init__(self, key: DataKey, where: bytes) -> None:
        salt = new_salt()
        self._head = MAGIC + key.id + salt
        self._aad = self._head + where
        self._cipher = message_cipher(key.secret, salt, b"file")
        self._number = 0
        self._rest = bytearray()
        self._begun = False

    def update(self, data: bytes) -> bytes:
        """Return what is to be written next; some of the data may wait for more."""
        self._rest += data
        out = bytearray(self._start())
        # The last segment is only known at the end, so one is always kept.
        while len(self._rest) > SEGMENT_BYTES:
            out += self._segment(bytes(self._rest[:SEGMENT_BYTES]), 0)
            del self._rest[:SEGMENT_BYTES]
        return bytes(out)

    def finish(self) -> bytes:
        """Return the end of the file."""
        return self._start() + self._segment(bytes(self._rest), _LAST)

    def _start(self) -> bytes:
        head = b"" if self._begun else self._head
        self._begun = True
        return head

    def _segment(self, plain: bytes, last: int) -> bytes:
        sealed = bytes(self._cipher.encrypt(nonce(last | self._number), plain, self._aad))
        self._number += 1
        return sealed


def seal_file(key: DataKey, content: bytes, where: bytes) -> bytes:
    """Seal a whole file at once."""
    sealer = FileSealer(key, where)
    return sealer.update(content) + sealer.finish()


def is_sealed_file(path: Path) -> bool:
    """Return whether a file begins as `FileSealer` makes it."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def opened_blocks(keys: Keyring, file: IO[bytes], where: bytes) -> Iterator[bytes]:
    """Yield the content of a file; one that is not sealed is yielded as it is.

    Raises:
        KeyMissing: its key is not here.
        SealBroken: it was changed, cut off, or sealed for another place.
    """
    head = file.read(HEAD_BYTES)
    if not head.startswith(MAGIC):
        yield head
        while block := file.read(SEGMENT_BYTES):
            yield block
        return
    if len(head) < HEAD_BYTES:
        raise SealBroken("a sealed file ends in its head")
    key = keys.find(head[len(MAGIC) : len(MAGIC) + KEY_ID_BYTES])
    cipher = message_cipher(key.secret, head[-SALT_BYTES:], b"file")
    number, segment = 0, file.read(SEGMENT_BYTES + TAG_BYTES)
    while True:
        following = file.read(SEGMENT_BYTES + TAG_BYTES)
        last = 0 if following else _LAST
        yield decrypt(cipher, last | number, segment, head + where)
        if not following:
            return
        number, segment = number + 1, following


def open_file(keys: Keyring, file: IO[bytes], where: bytes) -> bytes:
    """Return the whole content of a file. Raises as `opened_blocks`."""
    return b"".join(opened_blocks(keys, file, where))
