"""The prefix of each chunk: what stands between S and it when its KV is computed ahead of requests.

In the prefix modes primer and neighbours these are other chunks of the collection; in all other
modes nothing. A prompt's first chunk has no prefix besides S in any mode, because its KV is then
that of a full prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from retriever import Chunk, PrefixChunks, PrefixKind, Scope
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.messages.requests import ChunkTokens


@dataclass(frozen=True)
class ChosenPrefix:
    """A chunk with the prefix that was chosen for it.

    Attributes:
        chunk: What is to be stored.
        replaced: The same chunk with the prefixes that it had before, which is to be purged.
    """

    chunk: ChunkTokens
    replaced: list[ChunkTokens] = field(default_factory=list)


class ChunkPrefixes:
    """Adds prefixes to chunks. Thread-safe; every call blocks for a look-up on disk.

    Args:
        prompts: Encodes chunks.
        remembered: Which chunks form each chunk's prefix.
        count: Chunks of a prefix.
        primers: Prefixes of a chunk in mode primer; their mean is stored.

    Attributes:
        kind: Of prefixes; None if the prefix mode has none.
    """

    def __init__(
        self, prompts: PromptBuilder, remembered: PrefixChunks, count: int, primers: int
    ) -> None:
        kinds: dict[str, PrefixKind] = {"primer": "primer", "neighbours": "neighbours"}
        self.kind = kinds.get(prompts.prefix_mode)
        self._prompts = prompts
        self.remembered = remembered
        self._count = count
        self._primers = primers if self.kind == "primer" else 1

    def in_prompt(self, chunks: Sequence[Chunk]) -> list[ChunkTokens]:
        """Return the segments of a prompt, in its order, each with its prefix.

        A chunk that is not stored behind its prefix yet comes without: it may be stored alone.
        """
        segments = self._prompts.segments(chunks)
        if self.kind is None or len(segments) < 2:
            return segments
        chunk_ids = [chunk.chunk_id for chunk in chunks[1:]]
        prefixes = self.remembered.of(chunk_ids, self.kind, made=True)
        return segments[:1] + [
            self._behind(segment, prefixes.get(segment.chunk_id, [])) for segment in segments[1:]
        ]

    def choose(self, chunks: Sequence[Chunk], scope: Scope, max_context: int) -> list[ChosenPrefix]:
        """Choose the prefixes of chunks that are about to be computed.

        A prefix stays as it is unless it has fewer chunks than wanted: the collection may have
        grown.

        Args:
            chunks: The chunks.
            scope: Their tenant and collection.
            max_context: Tokens that the model takes.
        """
        assert self.kind is not None
        before = self.remembered.of([chunk.chunk_id for chunk in chunks], self.kind)
        most = self._count * self._primers
        short = [c for c in chunks if sum(map(len, before.get(c.chunk_id, ()))) < most]
        old: dict[int, list[ChunkTokens]] = {}
        for each in self.remembered.prefixed([chunk.chunk_id for chunk in short]):
            copy = self._copy(each.chunk, each.prefixes)
            old.setdefault(each.chunk.chunk_id, []).append(copy)
        room = max_context - len(self._prompts.system)
        wanted = [(chunk, (room - len(self._prompts.segment(chunk))) // 2) for chunk in short]
        now = self.remembered.choose_all(
            wanted, self.kind, scope=scope, count=self._count, primers=self._primers
        )
        prefixes = before | now
        out: list[ChosenPrefix] = []
        for chunk in chunks:
            copy = self._copy(chunk, prefixes[chunk.chunk_id])
            replaced = [other for other in old.get(chunk.chunk_id, []) if other != copy]
            out.append(ChosenPrefix(copy, replaced))
        return out

    def copies(self, chunk_ids: Sequence[int]) -> dict[int, list[ChunkTokens]]:
        """Return what is stored of these chunks with a prefix, and of chunks with them in theirs.

        Call it before any of them is removed: all of it holds their text, or follows from it.
        """
        found: dict[int, list[ChunkTokens]] = {chunk_id: [] for chunk_id in chunk_ids}
        for chunk_id, others in self.remembered.behind(chunk_ids).items():
            found[chunk_id] += with_prefixes(
                [self._copy(other.chunk, other.prefixes) for other in others]
            )
        for own in self.remembered.prefixed(chunk_ids):
            found[own.chunk.chunk_id].append(self._copy(own.chunk, own.prefixes))
        return found

    def incomplete(self, limit: int) -> list[tuple[Scope, str]]:
        """Documents of which something is still to be stored; see `PrefixChunks.open`."""
        if self.kind is None:
            return []
        return self.remembered.open(self.kind, limit, count=self._count * self._primers)

    def _copy(self, chunk: Chunk, prefixes: Sequence[Sequence[Chunk]]) -> ChunkTokens:
        alone = ChunkTokens(chunk.chunk_id, self._prompts.segment(chunk))
        return self._behind(alone, prefixes)

    def _behind(self, segment: ChunkTokens, prefixes: Sequence[Sequence[Chunk]]) -> ChunkTokens:
        ids = [[self._prompts.segment(chunk) for chunk in prefix] for prefix in prefixes]
        return replace(segment, behind=ids[0], also_behind=ids[1:]) if ids else segment


def with_prefixes(copies: Sequence[ChunkTokens]) -> list[ChunkTokens]:
    """Return these copies after their prefixes, each of which is also stored as one chunk."""
    prefixes = {
        tuple(token for ids in prefix for token in ids): copy
        for copy in copies
        for prefix in copy.prefixes
    }
    return [ChunkTokens(copy.chunk_id, list(ids)) for ids, copy in prefixes.items() if ids] + list(
        copies
    )
