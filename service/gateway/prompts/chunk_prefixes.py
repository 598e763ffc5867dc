"""The prefix of each chunk: what stands between S and it when its KV is computed ahead of requests.

In the prefix modes primer and neighbours these are other chunks of the collection, in the mode
primer also earlier ones of the same document; in all other modes nothing. A prompt's first chunk
has no prefix besides S in any mode, because its KV is then that of a full prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from retriever import Chunk, PrefixChunks, PrefixedChunk, PrefixKind, PrefixRule, Scope
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.messages.requests import ChunkTokens
from service.settings import Settings


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
        rule: Which prefixes chunks get; None if the prefix mode has none.

    Attributes:
        kind: Of prefixes; None if the prefix mode has none.
    """

    def __init__(
        self, prompts: PromptBuilder, remembered: PrefixChunks, rule: PrefixRule | None
    ) -> None:
        self._prompts = prompts
        self.remembered = remembered
        self._rule = rule
        self.kind = rule.kind if rule else None

    @classmethod
    def of(
        cls, prompts: PromptBuilder, remembered: PrefixChunks, settings: Settings
    ) -> ChunkPrefixes:
        """Return them with the rule that the settings name."""
        kinds: dict[str, PrefixKind] = {"primer": "primer", "neighbours": "neighbours"}
        kind = kinds.get(prompts.prefix_mode)
        rule = prefix_rule(kind, settings) if kind else None
        return cls(prompts, remembered, rule)

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
        assert self._rule is not None
        before = self.remembered.of([chunk.chunk_id for chunk in chunks], self._rule.kind)
        most = self._rule.most
        short = [c for c in chunks if sum(map(len, before.get(c.chunk_id, ()))) < most]
        old: dict[int, list[ChunkTokens]] = {}
        for each in self.remembered.prefixed([chunk.chunk_id for chunk in short]):
            copy = self._copy(each.chunk, each.prefixes)
            old.setdefault(each.chunk.chunk_id, []).append(copy)
        room = max_context - len(self._prompts.system)
        wanted = [(chunk, (room - len(self._prompts.segment(chunk))) // 2) for chunk in short]
        now = self.remembered.choose_all(wanted, self._rule, scope=scope)
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
            for other in others:
                found[chunk_id] += self._parts(other, chunk_id)
                found[chunk_id].append(self._copy(other.chunk, other.prefixes))
        for own in self.remembered.prefixed(chunk_ids):
            found[own.chunk.chunk_id].append(self._copy(own.chunk, own.prefixes))
        return found

    def incomplete(self, limit: int) -> list[tuple[Scope, str]]:
        """Documents of which something is still to be stored; see `PrefixChunks.open`."""
        if self._rule is None:
            return []
        return self.remembered.open(self._rule.kind, limit, count=self._rule.most)

    def _parts(self, chunk: PrefixedChunk, removed: int) -> list[ChunkTokens]:
        """Return the parts of a chunk's prefixes from a removed chunk on: they have seen it."""
        parts: list[ChunkTokens] = []
        for prefix in chunk.prefixes:
            places = [place for place, each in enumerate(prefix) if each.chunk_id == removed]
            for place in range(max(1, places[0]), len(prefix)) if places else ():
                parts.append(self._copy(prefix[place], [prefix[:place]]))
        return parts

    def _copy(self, chunk: Chunk, prefixes: Sequence[Sequence[Chunk]]) -> ChunkTokens:
        alone = ChunkTokens(chunk.chunk_id, self._prompts.segment(chunk))
        return self._behind(alone, prefixes)

    def _behind(self, segment: ChunkTokens, prefixes: Sequence[Sequence[Chunk]]) -> ChunkTokens:
        ids = [[self._prompts.segment(chunk) for chunk in prefix] for prefix in prefixes]
        return replace(segment, behind=ids[0], also_behind=ids[1:]) if ids else segment


def with_prefixes(copies: Sequence[ChunkTokens]) -> list[ChunkTokens]:
    """Return these copies after the parts of their prefixes, which are stored as chunks, too, each
    behind those before it."""
    parts = [
        ChunkTokens(copy.chunk_id, prefix[place], behind=prefix[:place])
        for copy in copies
        for prefix in copy.prefixes
        for place in range(len(prefix))
    ]
    once = [part for number, part in enumerate(parts) if part not in parts[:number]]
    return once + list(copies)


def prefix_rule(kind: PrefixKind, settings: Settings) -> PrefixRule:
    """Return which prefixes of a kind chunks get."""
    return PrefixRule(kind, settings.companions, settings.primers, settings.document_prefix)
