"""Chunks that are encrypted: sealed before a tier gets them, opened in place as they arrive.

A sealed chunk is laid out as it would be in the clear: every 64-token block of every tensor is
encrypted by itself and stays as long as it is, so that tiers, layers and partial reads work as they
do without. Its header, which tells of a chunk's content nothing but its shape, has a tag of 16
bytes in place of each block's digest, and besides:

    sealed    id of the data key, and the salt of the chunk's own key (aead.py)
    inner     the digests of the plain blocks, encrypted

Block b of tensor t has the nonce 1 + t · blocks + b, `inner` has 0. The chunk's key is
authenticated with each, the spec and the tags' number with `inner`. So a block does not open in the
place of another, of this chunk or any other.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence

from kvstitch.encryption.aead import SALT_BYTES, TAG_BYTES, decrypt, message_cipher, new_salt, nonce
from kvstitch.encryption.keyring import (
    KEY_ID_BYTES,
    DataKey,
    EncryptionError,
    KeyMissing,
    Keyring,
    SealBroken,
)
from kvstitch.kvstore.errors import ChunkCorrupt, ChunkLocked
from kvstitch.kvstore.format.buffers import allocate, view_bytes
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader, Seal, build_header
from kvstitch.kvstore.format.chunk_identity import ChunkSpec
from kvstitch.kvstore.format.safetensors_header import BLOCK_DIGEST_BYTES, GCM, BlockDigests
from kvstitch.kvstore.format.tensor_layout import tensor_layout

_PURPOSE = b"chunk"
_INNER = 0


def seal_chunk(chunk: EncodedChunk, key: DataKey) -> EncodedChunk:
    """Return the chunk as tiers keep it, with a salt of its own; its header must have its key."""
    header, spec = chunk.header, chunk.spec
    aad = header.key.encode()
    salt = new_salt()
    cipher = message_cipher(key.secret, salt, _PURPOSE)
    data = allocate(header.nbytes)
    source, target = view_bytes(chunk.data), view_bytes(data)
    entries = tensor_layout(spec)
    longest = max((e.end - e.start for e in entries), default=0)
    scratch = memoryview(bytearray(longest + TAG_BYTES))
    tags: dict[str, BlockDigests] = {}
    for number, entry in enumerate(entries):
        found = bytearray()
        for block in range(spec.blocks):
            start, end = entry.blocks_range(block, block)
            sealed = scratch[: end - start + TAG_BYTES]
            part = nonce(_number(number, block, spec))
            cipher.encrypt_into(part, source[start:end], aad, sealed)
            target[start:end] = sealed[:-TAG_BYTES]
            found += sealed[-TAG_BYTES:]
        tags[entry.name] = BlockDigests(GCM, bytes(found))
    inner = cipher.encrypt(nonce(_INNER), _packed(header), aad + _bound(spec))
    seal = Seal(key.id.hex(), salt.hex(), b64encode(inner).decode())
    return EncodedChunk(build_header(spec, tags, header.key, seal), data)


class Opening:
    """Opens the blocks of one sealed chunk in place; ChunkLocked: its key is not among `keys`."""

    def __init__(self, header: ChunkHeader, keys: Keyring | None) -> None:
        assert header.seal is not None
        self._header = header
        self._aad = header.key.encode()
        try:
            if keys is None:
                raise KeyMissing("this store has no keys")
            key_id, salt = bytes.fromhex(header.seal.key_id), bytes.fromhex(header.seal.salt)
            if (len(key_id), len(salt)) != (KEY_ID_BYTES, SALT_BYTES):
                raise SealBroken("the seal is not as we write it")
            key = keys.find(key_id)
            self._cipher = message_cipher(key.secret, salt, _PURPOSE)
            inner = b64decode(header.seal.inner, validate=True)
            packed = decrypt(self._cipher, _INNER, inner, self._aad + _bound(header.spec))
        except (KeyMissing, SealBroken, ValueError) as error:
            if isinstance(error, KeyMissing):
                raise ChunkLocked(str(error)) from error
            raise ChunkCorrupt(f"the header does not open: {error}") from error
        except EncryptionError as error:
            raise ChunkLocked(str(error)) from error
        self.owner = key.owner
        self.plain_header = _unpacked(header, packed)
        self._numbers = {entry.name: n for n, entry in enumerate(tensor_layout(header.spec))}

    def differing(
        self,
        name: str,
        digests: BlockDigests,
        blocks: Sequence[int],
        contents: Iterable[memoryview],
    ) -> list[int]:
        """Open blocks of a tensor where they are; return those that do not open."""
        tags, number, spec = digests.digests, self._numbers[name], self._header.spec
        return [
            block
            for block, piece in zip(blocks, contents, strict=True)
            if not self._open(
                _number(number, block, spec),
                piece,
                tags[block * TAG_BYTES : (block + 1) * TAG_BYTES],
            )
        ]

    def _open(self, number: int, piece: memoryview, tag: bytes) -> bool:
        from cryptography.exceptions import InvalidTag

        try:
            # The copy is in the CPU's cache. It is what lets the plain bytes go where these are.
            sealed = b"".join((piece, tag))
            self._cipher.decrypt_into(nonce(number), sealed, self._aad, piece)
        except InvalidTag:
            return False
        return True


def _number(tensor: int, block: int, spec: ChunkSpec) -> int:
    return 1 + tensor * spec.blocks + block


def _bound(spec: ChunkSpec) -> bytes:
    return repr(spec).encode()


def _packed(header: ChunkHeader) -> bytes:
    """The digests of all tensors, in the order of the layout, behind their algorithm."""
    ordered = [header.digests[entry.name] for entry in tensor_layout(header.spec)]
    return ordered[0].algorithm.encode() + b"\0" + b"".join(each.digests for each in ordered)


def _unpacked(header: ChunkHeader, packed: bytes) -> ChunkHeader:
    algorithm, _, digests = packed.partition(b"\0")
    spec, size = header.spec, header.spec.blocks * BLOCK_DIGEST_BYTES
    pieces: Iterator[bytes] = (digests[at : at + size] for at in range(0, len(digests), size))
    by_name = {
        entry.name: BlockDigests(algorithm.decode(), piece)
        for entry, piece in zip(tensor_layout(spec), pieces, strict=True)
    }
    return build_header(spec, by_name, header.key)
