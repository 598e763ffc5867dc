"""The prefix of each chunk: what stands between S and it when its KV is computed ahead of requests.

In the prefix modes primer and neighbours these are other chunks of the collection, in the mode
primer also earlier ones of the same document; in all other modes nothing. A prompt's first chunk
has no prefix besides S in any mode, because its KV is then that of a full prefill.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvstitch.retriever import Chunk, Scope
from kvstitch.retriever.prefixes.prefix_choice import PrefixKind, PrefixRule
from kvstitch.retriever.prefixes.prefix_chunks import PrefixChunks
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.messages.requests import ChunkTokens
from kvstitch.service.settings import Settings


@dataclass(frozen=True)
class ChosenPrefix:
    """A chunk with the prefix that was chosen for it, and with those that it had before, which are
    to be purged."""

    chunk: ChunkTokens
    replaced: list[ChunkTokens] = field(default_factory=list)


class ChunkPrefixes:
    """Adds prefixes to chunks, of a `kind` (None: there are none). Thread-safe; every call blocks
    for a look-up on disk."""

    def __init__(
        self, prompts: PromptBuilder, remembered: PrefixChunks, settings: Settings
    ) -> None:
        kinds: dict[str, PrefixKind] = {"primer": "primer", "neighbours": "neighbours"}
        self.kind = kinds.get(prompts.prefix_mode)
        self.remembered = remembered
        self._prompts = prompts
        self._rule = prefix_rule(self.kind, settings) if self.kind else None

    def in_prompt(self, chunks: Sequence[Chunk]) -> list[ChunkTokens]:
        """Return the segments of a prompt, in its order, each with its prefix.

        A chunk that is not stored behind its prefix yet comes without: it may be stored alone.
        """
        texts = _Texts(self._prompts)
        if self.kind is None or len(chunks) < 2:
            return [texts.copy(chunk) for chunk in chunks]
        chunk_ids = [chunk.chunk_id for chunk in chunks[1:]]
        prefixes = self.remembered.of(chunk_ids, self.kind, made=True)
        return [texts.copy(chunks[0])] + [
            texts.copy(chunk, prefixes.get(chunk.chunk_id, ())) for chunk in chunks[1:]
        ]

    def choose(self, chunks: Sequence[Chunk], scope: Scope, max_context: int) -> list[ChosenPrefix]:
        """Choose the prefixes of chunks that are about to be computed; one that has enough chunks
        stays as it is."""
        assert self._rule is not None
        texts = _Texts(self._prompts)
        before = self.remembered.of([chunk.chunk_id for chunk in chunks], self._rule.kind)
        most = self._rule.most
        own = {
            chunk_id: [other for each in prefixes for other in each if other.chunk_id >= 0]
            for chunk_id, prefixes in before.items()
        }
        short = [c for c in chunks if len(own.get(c.chunk_id, ())) < most]
        old: dict[int, list[ChunkTokens]] = {}
        for each in self.remembered.prefixed([chunk.chunk_id for chunk in short]):
            copy = texts.copy(each, each.prefixes)
            old.setdefault(each.chunk_id, []).append(copy)
        room = max_context - len(self._prompts.system)
        wanted = [(chunk, (room - len(texts.of(chunk))) // 2) for chunk in short]
        now = self.remembered.choose_all(wanted, self._rule, scope=scope)
        prefixes = before | now
        out: list[ChosenPrefix] = []
        for chunk in chunks:
            copy = texts.copy(chunk, prefixes[chunk.chunk_id])
            replaced = [other for other in old.get(chunk.chunk_id, []) if other != copy]
            out.append(ChosenPrefix(copy, replaced))
        return out

    def own_copies(self, chunk_ids: Sequence[int]) -> dict[int, ChunkTokens]:
        """Return each of these chunks with its prefix, if it has one."""
        texts = _Texts(self._prompts)
        return {
            each.chunk_id: texts.copy(each, each.prefixes)
            for each in self.remembered.prefixed(chunk_ids)
        }

    def copies(
        self, chunk_ids: Sequence[int], *, together: bool = False
    ) -> dict[int, list[ChunkTokens]]:
        """Return what is stored of these chunks with a prefix, and of chunks with them in theirs,
        with the parts of these prefixes. Call it before any of them is removed.

        If they are removed `together`, what holds several of them comes once, with the first of
        these.
        """
        removed = _RemovedCopies(_Texts(self._prompts), chunk_ids, together)
        behind = self.remembered.behind(chunk_ids).values()
        concerned = {each.chunk_id: each for others in behind for each in others}
        concerned |= {each.chunk_id: each for each in self.remembered.prefixed(chunk_ids)}
        for each in concerned.values():
            removed.add(each)
        return removed.found

    def incomplete(self, limit: int) -> list[tuple[Scope, str]]:
        """Documents of which something is still to be stored; see `PrefixChunks.open`."""
        if self._rule is None:
            return []
        return self.remembered.open(self._rule.kind, limit, count=self._rule.most)


class _RemovedCopies:
    """What goes with removed chunks: each copy once for those that are removed together."""

    def __init__(self, texts: "_Texts", chunk_ids: Sequence[int], together: bool) -> None:
        self.found: dict[int, list[ChunkTokens]] = {chunk_id: [] for chunk_id in chunk_ids}
        self._texts = texts
        self._together = together
        self._once: set[tuple[str, tuple[int, ...]]] = set()

    def add(self, each: Chunk) -> None:
        """Add a chunk that is removed, or has removed ones in its prefixes, with their parts."""
        holders: dict[str, int] = {}
        for prefix in each.prefixes:
            for group, first in self._firsts(prefix).items():
                holders.setdefault(group, prefix[first].chunk_id)
                self._add_parts(group, prefix, first)
        if each.chunk_id in self.found:
            holders.setdefault(self._group(each), each.chunk_id)
        for group, holder in holders.items():
            # With one prefix it may be a part of a longer one, too.
            if len(each.prefixes) > 1 or self._is_new(group, [*each.prefixes[0], each]):
                self.found[holder].append(self._texts.copy(each, each.prefixes))

    def _add_parts(self, group: str, prefix: Sequence[Chunk], first: int) -> None:
        """Add a prefix's parts from a removed chunk on: if one was there, the shorter ones were."""
        for place in range(len(prefix) - 1, max(1, first) - 1, -1):
            if not self._is_new(group, prefix[: place + 1]):
                break
            part = self._texts.copy(prefix[place], [prefix[:place]])
            self.found[prefix[first].chunk_id].append(part)

    def _firsts(self, prefix: Sequence[Chunk]) -> dict[str, int]:
        """Return the place of the first removed chunk of each group."""
        firsts: dict[str, int] = {}
        for place, chunk in enumerate(prefix):
            if chunk.chunk_id in self.found:
                firsts.setdefault(self._group(chunk), place)
        return firsts

    def _group(self, chunk: Chunk) -> str:
        return "" if self._together else chunk.doc_id

    def _is_new(self, group: str, chunks: Sequence[Chunk]) -> bool:
        key = group, tuple(chunk.chunk_id for chunk in chunks)
        new = key not in self._once
        self._once.add(key)
        return new


class _Texts:
    """Token ids of chunks during one call: a text that stands in many prefixes is one list."""

    def __init__(self, prompts: PromptBuilder) -> None:
        self._segment = prompts.segment
        self._made: dict[int, list[int]] = {}

    def of(self, chunk: Chunk) -> list[int]:
        if chunk.chunk_id < 0:  # of an inline document
            return self._segment(chunk)
        if (ids := self._made.get(chunk.chunk_id)) is None:
            ids = self._made[chunk.chunk_id] = self._segment(chunk)
        return ids

    def copy(self, chunk: Chunk, prefixes: Sequence[Sequence[Chunk]] = ()) -> ChunkTokens:
        ids = [[self.of(other) for other in prefix] for prefix in prefixes]
        own = self.of(chunk)
        return ChunkTokens(chunk.chunk_id, own, *((ids[0], ids[1:]) if ids else ()))


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
    return PrefixRule(kind, settings.companions, settings.primers, settings.document_prefix)
