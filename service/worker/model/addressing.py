"""From token ids to the KV store: a chunk's key, its spec, and the prefix it is precomputed behind.

Prefix modes are those of docs/specification.md §0.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore import ChunkSpec, chunk_key
from service.worker.core.layout import Prefix
from service.worker.model.adapters.base import DecoderAdapter

BEHIND_DOCUMENTS = ("primer", "neighbours")
"""Prefix modes in which other documents stand between S and a document."""


@dataclass(frozen=True)
class Address:
    """Where one segment's KV is stored, and everything needed to compute it again.

    Attributes:
        key: of the chunk in the store.
        spec: shape, dtype and codec of the chunk.
        prefix_ids: token ids that precede the segment while it is precomputed.
        ids: token ids of the segment.
        neighbours: the chunks whose stored KV makes up the end of the prefix; none if the prefix is
            computed as a whole.
    """

    key: str
    spec: ChunkSpec
    prefix_ids: tuple[int, ...]
    ids: tuple[int, ...]
    neighbours: tuple[Address, ...] = ()

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.prefix_ids, exact=not self.neighbours)


class Addressing:
    """Makes addresses for one model and codec.

    Args:
        adapter: the model.
        fingerprint: of the model.
        codec: name of the codec that chunks are stored with.
        secret: keyed into the hashes of the default tenant's chunks; empty for plain hashes.
        tenants_secret: each named tenant's own secret is derived from it.
    """

    def __init__(
        self,
        adapter: DecoderAdapter,
        *,
        fingerprint: str,
        codec: str,
        secret: bytes = b"",
        tenants_secret: bytes = b"",
    ) -> None:
        self._adapter = adapter
        self._fingerprint = fingerprint
        self._codec = codec
        self._secret = secret
        self._tenants_secret = tenants_secret or secret
        self._dtype = str(adapter.dtype).removeprefix("torch.")

    def system(self, ids: Sequence[int], tenant: str) -> Address:
        """The system segment S. It starts every prompt, so its KV is exact in all of them."""
        return self._address(ids, "none", (), tenant)

    def document(
        self,
        ids: Sequence[int],
        prefix_mode: str,
        system: Sequence[int],
        tenant: str,
        behind: Sequence[Sequence[int]] = (),
    ) -> Address:
        """A document segment, precomputed behind the prefix that `prefix_mode` names.

        Args:
            behind: token ids of the documents that stand between S and this one then, in the modes
                primer and neighbours. Behind none of them it is the same chunk as in mode system.
        """
        if prefix_mode not in BEHIND_DOCUMENTS:
            return self._address(ids, prefix_mode, self.prefix(prefix_mode, system), tenant)
        prefix = (*system, *(token for each in behind for token in each))
        if not behind or prefix_mode == "primer":
            return self._address(ids, "system", prefix, tenant)
        neighbours = [self._address(each, "system", tuple(system), tenant) for each in behind]
        return self._address(ids, prefix_mode, prefix, tenant, neighbours)

    def prefix(self, prefix_mode: str, system: Sequence[int]) -> tuple[int, ...]:
        """Token ids that a chunk is precomputed behind; their own KV is not stored."""
        if prefix_mode == "system":
            return tuple(system)
        if prefix_mode == "bos":
            bos = getattr(self._adapter.config, "bos_token_id", None)
            return tuple(system[:1]) if system and system[0] == bos else ()
        return ()  # "none", and "bos_keep", where BOS is among the segment's own ids

    def _address(
        self,
        ids: Sequence[int],
        prefix_mode: str,
        prefix: tuple[int, ...],
        tenant: str,
        neighbours: Sequence[Address] = (),
    ) -> Address:
        adapter = self._adapter
        spec = ChunkSpec(
            fingerprint=self._fingerprint,
            codec=self._codec,
            dtype=self._dtype,
            layers=adapter.layers,
            kv_heads=adapter.kv_heads,
            head_dim=adapter.head_dim,
            tokens=len(ids),
        )
        key = chunk_key(
            fingerprint=self._fingerprint,
            dtype=self._dtype,
            codec=self._codec,
            prefix_mode=prefix_mode,
            prefix_ids=prefix,
            chunk_ids=ids,
            tenant_secret=self._tenant_secret(tenant),
        )
        return Address(key, spec, prefix, tuple(ids), tuple(neighbours))

    def _tenant_secret(self, tenant: str) -> bytes:
        if not tenant:
            return self._secret
        return hmac.new(self._tenants_secret, tenant.encode(), hashlib.sha256).digest()
