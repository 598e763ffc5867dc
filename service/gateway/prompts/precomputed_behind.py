"""What each chunk is precomputed behind, as token ids: its prefix, in the modes that have one.

A prompt's first chunk stands behind S alone in every mode, where its KV is that of a full prefill.
All other chunks stand behind S and their prefix chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from retriever import Chunk, PrefixChunks, PrefixKind, Scope
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.messages.requests import ChunkTokens

KINDS: dict[str, PrefixKind] = {"primer": "primer", "neighbours": "neighbours"}


@dataclass(frozen=True)
class Chosen:
    """A chunk behind its prefix chunks.

    Attributes:
        chunk: What is to be stored.
        replaced: What was stored for it behind others, and is to be purged.
    """

    chunk: ChunkTokens
    replaced: list[ChunkTokens] = field(default_factory=list)


class PrecomputedBehind:
    """Adds prefix chunks to chunks. Thread-safe; every call blocks for a look-up on disk.

    Args:
        prompts: encodes them.
        prefixes: stores which they are.
        count: prefix chunks of a chunk.

    Attributes:
        kind: of the prefixes; None if the prefix mode has none.
    """

    def __init__(self, prompts: PromptBuilder, prefixes: PrefixChunks, count: int) -> None:
        self.kind = KINDS.get(prompts.prefix_mode)
        self._prompts = prompts
        self._prefixes = prefixes
        self._count = count

    def in_prompt(self, chunks: Sequence[Chunk]) -> list[ChunkTokens]:
        """The segments of a prompt, in its order, each as it was precomputed for its place."""
        segments = self._prompts.segments(chunks)
        if self.kind is None or len(segments) < 2:
            return segments
        prefixes = self._prefixes.of([chunk.chunk_id for chunk in chunks[1:]], self.kind)
        return segments[:1] + [
            replace(segment, behind=self._ids(prefixes.get(segment.chunk_id, [])))
            for segment in segments[1:]
        ]

    def choose(self, chunk: Chunk, scope: Scope, max_context: int) -> Chosen:
        """Choose the prefix of a chunk that is about to be precomputed.

        It stays as it is unless it has fewer chunks than wanted: the collection may have grown.

        Args:
            max_context: Tokens that the model takes.
        """
        assert self.kind is not None
        before = self._prefixes.of([chunk.chunk_id], self.kind).get(chunk.chunk_id, [])
        if len(before) >= self._count:
            return Chosen(self._copy(chunk, before))
        old = [self._copy(a.chunk, a.prefix)
               for a in self._prefixes.prefixed([chunk.chunk_id])]  # fmt: skip
        room = max_context - len(self._prompts.system) - len(self._prompts.segment(chunk))
        now = self._prefixes.choose(
            chunk, self.kind, scope=scope, count=self._count, max_tokens=room // 2
        )
        copy = self._copy(chunk, now)
        return Chosen(copy, [other for other in old if other != copy])

    def copies(self, chunk_ids: Sequence[int]) -> dict[int, list[ChunkTokens]]:
        """What is stored behind each of these chunks, or is theirs and stands behind others.

        Call it before any of them is removed: all of it holds their text, or follows from it.
        """
        found: dict[int, list[ChunkTokens]] = {chunk_id: [] for chunk_id in chunk_ids}
        for chunk_id, behind in self._prefixes.behind(chunk_ids).items():
            found[chunk_id] += with_prefixes([self._copy(a.chunk, a.prefix) for a in behind])
        for own in self._prefixes.prefixed(chunk_ids):
            found[own.chunk.chunk_id].append(self._copy(own.chunk, own.prefix))
        return found

    def forget(self, chunk_ids: Sequence[int]) -> None:
        """These chunks were removed."""
        self._prefixes.forget(chunk_ids)

    def open(self, limit: int) -> list[tuple[Scope, str]]:
        """Documents of which something is to be stored still; see `PrefixChunks.open`."""
        return [] if self.kind is None else self._prefixes.open(self.kind, limit)

    def set_exact(self, chunk_ids: Sequence[int]) -> None:
        """The chunks are stored behind S alone, too."""
        self._prefixes.set_exact(chunk_ids)

    def _copy(self, chunk: Chunk, prefix: Sequence[Chunk]) -> ChunkTokens:
        return ChunkTokens(chunk.chunk_id, self._prompts.segment(chunk), self._ids(prefix))

    def _ids(self, prefix: Sequence[Chunk]) -> list[list[int]]:
        return [self._prompts.segment(chunk) for chunk in prefix]


def with_prefixes(copies: Sequence[ChunkTokens]) -> list[ChunkTokens]:
    """These copies, and before them what they stand behind: a primer is stored as one chunk."""
    prefixes = {tuple(token for ids in copy.behind for token in ids): copy for copy in copies}
    return [ChunkTokens(copy.chunk_id, list(ids)) for ids, copy in prefixes.items() if ids] + list(
        copies
    )
