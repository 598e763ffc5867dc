"""From token ids to the KV store: a chunk's key, its spec, and the prefix it is precomputed
behind, by the prefix modes of docs/specification.md §0."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from kvstitch.kvstore import ChunkSpec, chunk_key
from kvstitch.service.prompt import CHUNK_PREFIX_MODES, PREFIX_MODES
from kvstitch.service.worker.layout import Prefix
from kvstitch.service.worker.model.decoder import DecoderModel


@dataclass(frozen=True)
class Address:
    """Where one segment's KV is stored, and everything needed to compute it again."""

    key: str  # of the chunk in the store
    spec: ChunkSpec
    ids: tuple[int, ...]
    # what stands before the segment while it is precomputed, one after the other
    parts: tuple[Address, ...] = ()
    # what else stands before it: its rows take the mean of what they attend to behind each
    other_parts: tuple[tuple[Address, ...], ...] = ()
    # each part but the first was computed as if it alone stood behind the first
    stitched: bool = False
    lora: str = ""  # name of the LoRA adapter that it is computed with; empty for the base model
    owner: str = ""  # the tenant, whose key seals it where it is stored

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """Token ids of the parts."""
        return _ids(self.parts)

    @property
    def all_parts(self) -> list[tuple[Address, ...]]:
        """What it is computed behind, one after the other."""
        return [self.parts, *self.other_parts]

    @property
    def prefix_lengths(self) -> list[int]:
        """Tokens of each prefix that it is computed behind; 0 where nothing stands before it."""
        return [sum(len(part.ids) for part in parts) for parts in self.all_parts]

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.prefix_ids, exact=not self.stitched and not self.other_parts)


MAX_PREFIXES = 1024
"""Remembered by one `Addressing`."""
_PrefixKey = tuple[tuple[int, ...], str, str, str]


@dataclass(frozen=True, kw_only=True)
class Addressing:
    """Makes addresses for one model and codec."""

    decoder: DecoderModel = field(kw_only=False)
    fingerprint: str
    codec: str
    # keyed into the hashes of the default tenant's chunks; empty for plain hashes
    secret: bytes = b""
    # each named tenant's own secret is derived from it; empty for `secret`
    tenants_secret: bytes = b""
    # name of the LoRA adapter that chunks are computed with; empty for the base model
    lora: str = ""
    _prefixes: dict[_PrefixKey, tuple[Address, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def with_lora(self, name: str) -> Addressing:
        """Return the addresses of chunks that are computed with a LoRA adapter; "": none."""
        return replace(self, lora=name)

    def system(self, ids: Sequence[int], tenant: str) -> Address:
        """Return the system segment S, whose KV is exact in every prompt."""
        # Raw, because all tokens look at it, and it is short.
        return self._address(ids, "none", (), tenant, codec="raw")

    def document(
        self,
        ids: Sequence[int],
        prefix_mode: str,
        system: Sequence[int],
        tenant: str,
        behind: Sequence[Sequence[Sequence[int]]] = (),
    ) -> Address:
        """Return a document segment, precomputed behind the prefix that `prefix_mode` names; in
        the modes primer and neighbours that is S and then the documents `behind`, in mode primer
        several such prefixes at once; behind none it is the same chunk as in mode system. Each
        part of a primer is computed behind those before it, as such chunks are parts of one
        another's prefixes."""
        start = self._prefix(self.prefix(prefix_mode, system), (), tenant)
        if not behind or prefix_mode not in CHUNK_PREFIX_MODES:
            mode = "system" if prefix_mode in CHUNK_PREFIX_MODES else prefix_mode
            return self._address(ids, mode, start, tenant)
        if prefix_mode == "primer":
            first, *others = [self._nested(prefix, start, tenant) for prefix in behind]
            if not others:
                return self._address(ids, "system", first, tenant)
            return self._address(ids, "mean", first, tenant, other_parts=tuple(others))
        neighbours = [self._address(each, "system", start, tenant) for each in behind[0]]
        return self._address(ids, prefix_mode, (*start, *neighbours), tenant, stitched=True)

    def purged(
        self,
        ids: Sequence[int],
        system: Sequence[int],
        tenant: str,
        behind: Sequence[Sequence[Sequence[int]]],
    ) -> set[str]:
        """Return every key under which these tokens may be stored, in whatever prefix mode; with
        documents `behind` only what was computed behind them."""
        keys: set[str] = set()
        for mode in CHUNK_PREFIX_MODES if behind else PREFIX_MODES:
            address = self.document(ids, mode, system, tenant, behind)
            keys.add(address.key)
            for parts in address.all_parts:
                keys.update(part.key for part in self._prefix(ids, parts, tenant)[-1:])
        return keys

    def prefix(self, prefix_mode: str, system: Sequence[int]) -> tuple[int, ...]:
        """Return the token ids that a chunk is precomputed behind; their own KV is not stored."""
        if prefix_mode == "system" or prefix_mode in CHUNK_PREFIX_MODES:
            return tuple(system)
        if prefix_mode == "bos":
            bos = getattr(self.decoder.config, "bos_token_id", None)
            return tuple(system[:1]) if system and system[0] == bos else ()
        return ()  # "none", and "bos_keep", where BOS is among the segment's own ids

    def _nested(
        self, prefix: Sequence[Sequence[int]], before: tuple[Address, ...], tenant: str
    ) -> tuple[Address, ...]:
        """Return the parts `before`, and then each of a prefix's as a part."""
        for ids in prefix:
            before = self._prefix(ids, before, tenant)
        return before

    def _prefix(
        self, ids: Sequence[int], before: tuple[Address, ...], tenant: str
    ) -> tuple[Address, ...]:
        """Return the parts `before` and then these tokens, under the keys of such segments."""
        if not ids:
            return before
        # Many chunks stand behind the same primers, at every prompt, and hashing them takes long.
        asked = (tuple(ids), before[-1].key if before else "", tenant, self.lora)
        known = self._prefixes.get(asked)
        if known is None:
            if len(self._prefixes) >= MAX_PREFIXES:
                self._prefixes.clear()
            part = self.system(ids, tenant)
            if before:
                part = self._address(ids, "system", before, tenant)
            self._prefixes[asked] = known = (*before, part)
        return known

    def spec(self, tokens: int, codec: str = "") -> ChunkSpec:
        """Return what a chunk of so many tokens holds, by default in the codec of documents."""
        decoder = self.decoder
        # By the adapter's weights: renaming it changes no key, and training it further changes all.
        own = f"+{decoder.loras[self.lora].info.fingerprint}" if self.lora else ""
        return ChunkSpec(
            fingerprint=self.fingerprint + own,
            codec=codec or self.codec,
            dtype=str(decoder.dtype).removeprefix("torch."),
            layers=decoder.layers,
            kv_heads=decoder.kv_heads,
            head_dim=decoder.head_dim,
            tokens=tokens,
            values_are_keys=decoder.values_are_keys,
            state=decoder.state_bytes(codec or self.codec),
        )

    def _address(
        self,
        ids: Sequence[int],
        prefix_mode: str,
        parts: tuple[Address, ...],
        tenant: str,
        *,
        codec: str = "",
        other_parts: tuple[tuple[Address, ...], ...] = (),
        stitched: bool = False,
    ) -> Address:
        spec = self.spec(len(ids), codec)
        prefix_ids: Sequence[int] = _ids(parts)
        if other_parts:  # a part's key stands for its own tokens, and for those before it
            keys = [each[-1].key for each in (parts, *other_parts)]
            prefix_ids = [int(key[at : at + 4], 16) for key in keys for at in range(0, 32, 4)]
        key = chunk_key(
            fingerprint=spec.fingerprint,
            dtype=spec.dtype,
            codec=spec.codec,
            prefix_mode=prefix_mode,
            prefix_ids=prefix_ids,
            chunk_ids=ids,
            tenant_secret=self._tenant_secret(tenant),
        )
        # Those of a tenant who share prompts have names of their own, and the tenant's key.
        owner = tenant.partition("\0")[0]
        return Address(
            key, spec, tuple(ids), parts, other_parts, stitched, lora=self.lora, owner=owner
        )

    def _tenant_secret(self, tenant: str) -> bytes:
        if not tenant:
            return self.secret
        secret = self.tenants_secret or self.secret
        return hmac.new(secret, tenant.encode(), hashlib.sha256).digest()


def _ids(parts: Sequence[Address]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(part.ids for part in parts))
