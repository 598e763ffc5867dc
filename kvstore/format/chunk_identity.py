"""The identity of a chunk: what it holds (its spec), and its key.

The spec is the model's fingerprint, the codec and the shape. The key is a content address: the same
text under the same model always has the same key, whatever its place in a prompt. So a new
combination of known documents writes no new chunk.
"""

import hashlib
import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvstitch.kvstore.errors import ChunkSpecError

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
# With a bound, a tier can name every value that a chunk may have without reading the chunk.
MAX_LAYERS = 512
# The unit of checksums and of partial reads. Part of the format.
BLOCK_TOKENS = 64
# Part of every hash. It stays when the file format changes: so a chunk in an older format is found
# under its key, refused and replaced, and a deletion still reaches it.
_DOMAIN = b"kvstitch-chunk-2"
KEY_LENGTH = 32
_KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}\Z")
_EXTRA_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")


@dataclass(frozen=True)
class ChunkSpec:
    """What a chunk holds; k and v of each layer are `[tokens, kv_heads, head_dim]`."""

    fingerprint: str  # the model that the cache belongs to. Another fingerprint is refused on read.
    codec: str  # name of a codec in `kvstore/format/codecs.py`
    dtype: str  # of the tensors before encoding: `"bfloat16"`, `"float16"` or `"float32"`
    layers: int
    kv_heads: int
    head_dim: int
    tokens: int
    # Whether k is stored alone, because v is the same (latent attention).
    values_are_keys: bool = False
    # Bytes per layer of what is stored for layers that keep a state; 0 where none does.
    state: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ChunkSpecError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        for name in ("layers", "kv_heads", "head_dim", "tokens"):
            if getattr(self, name) < 1:
                raise ChunkSpecError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.layers > MAX_LAYERS:
            raise ChunkSpecError(f"layers must be at most {MAX_LAYERS}, got {self.layers}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the decoded tensors."""
        return DTYPES[self.dtype]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one layer's k (and of its v): `[tokens, kv_heads, head_dim]`."""
        return (self.tokens, self.kv_heads, self.head_dim)

    @property
    def blocks(self) -> int:
        """Number of blocks of 64 tokens; the last may hold fewer."""
        return -(-self.tokens // BLOCK_TOKENS)

    def block_span(self, block: int) -> tuple[int, int]:
        """Return the tokens `[start, stop)` of a block."""
        start = block * BLOCK_TOKENS
        return start, min(start + BLOCK_TOKENS, self.tokens)


def chunk_key(
    *,
    fingerprint: str,
    dtype: str,
    codec: str,
    prefix_mode: str,
    prefix_ids: Sequence[int],
    chunk_ids: Sequence[int],
    tenant_secret: bytes = b"",
) -> str:
    """Compute the key of one chunk: 32 hex characters of blake2b-128.

    Every field is length-prefixed, so two different sets of fields never hash the same bytes. With
    a tenant secret the hash is keyed, so another tenant can neither hit nor guess the chunk.

    Args:
        fingerprint: weights revision, config, RoPE parameters, tokenizer and template, as one text.
        dtype: as in `ChunkSpec`.
        codec: as in `ChunkSpec`.
        prefix_mode: name of what stood before the chunk when it was prefilled.
        prefix_ids: token ids of that prefix.
        chunk_ids: token ids of the chunk.
        tenant_secret: any length; empty means that all tenants share one namespace.
    """
    # blake2b takes at most 64 bytes of key; hashing first lifts that bound.
    secret = hashlib.blake2b(tenant_secret, digest_size=32).digest() if tenant_secret else b""
    digest = hashlib.blake2b(digest_size=16, key=secret, person=_DOMAIN)
    for field in (
        fingerprint.encode(),
        dtype.encode(),
        codec.encode(),
        prefix_mode.encode(),
        _pack_ids(prefix_ids),
        _pack_ids(chunk_ids),
    ):
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return digest.hexdigest()


def is_chunk_key(text: str) -> bool:
    """Return whether `text` has the form of a chunk key."""
    return _KEY.match(text) is not None


def require_chunk_key(text: str) -> str:
    """Return `text` if it is a chunk key: tiers build file names and Redis names from it."""
    if _KEY.match(text) is None:
        raise ChunkSpecError(f"not a chunk key (32 lower-case hex characters): {text!r}")
    return text


def is_extra_name(text: str) -> bool:
    """Return whether `text` can name extra tensors."""
    return _EXTRA_NAME.match(text) is not None


def require_extra_name(text: str) -> str:
    """Return `text` if it can name extra tensors: tiers build file names from it."""
    if not is_extra_name(text):
        raise ChunkSpecError(f"not a name of extra tensors (a-z, 0-9, _; at most 32): {text!r}")
    return text


def _pack_ids(ids: Sequence[int]) -> bytes:
    try:
        packed = array("i", ids)
    except (OverflowError, TypeError) as error:
        raise ChunkSpecError(f"token ids must be integers in [0, 2**31): {error}") from error
    if sys.byteorder == "big":
        packed.byteswap()
    raw = packed.tobytes()
    # The sign bits, because a prompt's prefixes are thousands of tokens and looked at each time.
    if max(raw[3::4], default=0) > 127:
        raise ChunkSpecError(f"token ids must be integers in [0, 2**31), got {min(ids)}")
    return raw
