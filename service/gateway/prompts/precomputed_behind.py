"""What each chunk is precomputed behind, as token ids: its companions, in the modes that have them.

A prompt's first chunk stands behind S alone in every mode, where its KV is that of a full prefill.
All other chunks stand behind S and their companions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from retriever import Chunk, Companions, Kind, Scope
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.messages.requests import ChunkTokens

KINDS: dict[str, Kind] = {"primer": "primer", "neighbours": "neighbours"}


@dataclass(frozen=True)
class Chosen:
    """A chunk behind its companions.

    Attributes:
        chunk: What is to be stored.
        replaced: What was stored for it behind others, and is to be purged.
    """

    chunk: ChunkTokens
    replaced: list[ChunkTokens] = field(default_factory=list)


class PrecomputedBehind:
    """Adds companions to chunks. Thread-safe; every call blocks for a look-up on disk.

    Args:
        prompts: encodes them.
        companions: remembers them.
        count: companions of a chunk.

    Attributes:
        kind: of the companions; None if the prefix mode has none.
    """

    def __init__(self, prompts: PromptBuilder, companions: Companions, count: int) -> None:
        self.kind = KINDS.get(prompts.prefix_mode)
        self._prompts = prompts
        self._companions = companions
        self._count = count

    def in_prompt(self, chunks: Sequence[Chunk]) -> list[ChunkTokens]:
        """The segments of a prompt, in its order, each as it was precomputed for its place."""
        segments = self._prompts.segments(chunks)
        if self.kind is None or len(segments) < 2:
            return segments
        companions = self._companions.of([chunk.chunk_id for chunk in chunks[1:]], self.kind)
        return segments[:1] + [
            replace(segment, behind=self._ids(companions.get(segment.chunk_id, [])))
            for segment in segments[1:]
        ]

    def choose(self, chunk: Chunk, scope: Scope, max_context: int) -> Chosen:
        """Chooses the companions of a chunk that is about to be precomputed.

        They stay as they are unless there are fewer than wanted: the collection may have grown.

        Args:
            max_context: Tokens that the model takes.
        """
        assert self.kind is not None
        before = self._companions.of([chunk.chunk_id], self.kind).get(chunk.chunk_id, [])
        if len(before) >= self._count:
            return Chosen(self._copy(chunk, before))
        old = [self._copy(a.chunk, a.companions)
               for a in self._companions.accompanied([chunk.chunk_id])]  # fmt: skip
        room = max_context - len(self._prompts.system) - len(self._prompts.segment(chunk))
        now = self._companions.choose(
            chunk, self.kind, scope=scope, count=self._count, max_tokens=room // 2
        )
        copy = self._copy(chunk, now)
        return Chosen(copy, [other for other in old if other != copy])

    def copies(self, chunk_ids: Sequence[int]) -> dict[int, list[ChunkTokens]]:
        """What is stored behind each of these chunks, or is theirs and stands behind others.

        Call it before any of them is removed: all of it holds their text, or follows from it.
        """
        found: dict[int, list[ChunkTokens]] = {chunk_id: [] for chunk_id in chunk_ids}
        for companion_id, behind in self._companions.behind(chunk_ids).items():
            found[companion_id] += with_prefixes(
                [self._copy(a.chunk, a.companions) for a in behind]
            )
        for own in self._companions.accompanied(chunk_ids):
            found[own.chunk.chunk_id].append(self._copy(own.chunk, own.companions))
        return found

    def forget(self, chunk_ids: Sequence[int]) -> None:
        """These chunks were removed."""
        self._companions.forget(chunk_ids)

    def open(self, limit: int) -> list[tuple[Scope, str]]:
        """Documents of which something is to be stored still; see `Companions.open`."""
        return [] if self.kind is None else self._companions.open(self.kind, limit)

    def set_exact(self, chunk_ids: Sequence[int]) -> None:
        """The chunks are stored behind S alone, too."""
        self._companions.set_exact(chunk_ids)

    def _copy(self, chunk: Chunk, companions: Sequence[Chunk]) -> ChunkTokens:
        return ChunkTokens(chunk.chunk_id, self._prompts.segment(chunk), self._ids(companions))

    def _ids(self, companions: Sequence[Chunk]) -> list[list[int]]:
        return [self._prompts.segment(chunk) for chunk in companions]


def with_prefixes(copies: Sequence[ChunkTokens]) -> list[ChunkTokens]:
    """These copies, and before them what they stand behind: a primer is stored as one chunk."""
    prefixes = {tuple(token for ids in copy.behind for token in ids): copy for copy in copies}
    return [ChunkTokens(copy.chunk_id, list(ids)) for ids, copy in prefixes.items() if ids] + list(
        copies
    )
