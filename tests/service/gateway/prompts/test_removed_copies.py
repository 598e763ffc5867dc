"""What goes with removed chunks is all that holds their text or has seen it, and each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.retriever import Chunk
from kvstitch.service.gateway.prompts.chunk_prefixes import _RemovedCopies
from kvstitch.service.messages.requests import ChunkTokens

Copy = tuple[tuple[int, ...], ...]
DOCUMENTS = 3


class Names:
    """Stands for the texts: a chunk's token ids are its number."""

    def copy(self, chunk: Chunk, prefixes: Sequence[Sequence[Chunk]] = ()) -> ChunkTokens:
        ids = [[[other.chunk_id] for other in prefix] for prefix in prefixes]
        return ChunkTokens(chunk.chunk_id, [chunk.chunk_id], ids[0], ids[1:])


def chunk(number: int) -> Chunk:
    """One of a document that every third chunk is of."""
    return Chunk(
        chunk_id=number, doc_id=f"d{number % DOCUMENTS}", ordinal=0, text="", title="",
        char_start=0, char_end=0, revision="", tokens=1,
    )  # fmt: skip


def copy_of(number: int, prefixes: Sequence[Sequence[int]]) -> Copy:
    return ((number,), *(tuple(prefix) for prefix in prefixes))


def expected(removed: set[int], stored: dict[int, list[list[int]]]) -> set[Copy]:
    found: set[Copy] = set()
    for number, prefixes in stored.items():
        if number in removed or any(removed.intersection(prefix) for prefix in prefixes):
            found.add(copy_of(number, prefixes))
        for prefix in prefixes:
            for place in range(1, len(prefix)):
                if removed.intersection(prefix[: place + 1]):
                    found.add(copy_of(prefix[place], [prefix[:place]]))
    return found


NUMBERS = st.integers(0, 9)
PREFIX = st.lists(NUMBERS, min_size=1, max_size=5, unique=True)


@settings(deadline=None)
@given(
    removed=st.sets(NUMBERS, min_size=1),
    stored=st.dictionaries(NUMBERS, st.lists(PREFIX, min_size=1, max_size=2)),
    together=st.booleans(),
)
def test_all_that_has_seen_them_and_each_once(
    removed: set[int], stored: dict[int, list[list[int]]], together: bool
) -> None:
    copies = _RemovedCopies(Names(), sorted(removed), together)  # type: ignore[arg-type]
    for number, prefixes in stored.items():
        copies.add(replace(chunk(number), prefixes=[[chunk(n) for n in one] for one in prefixes]))
    assert set(copies.found) == removed
    groups = [removed] if together else [
        {number for number in removed if number % DOCUMENTS == document}
        for document in range(DOCUMENTS)
    ]  # fmt: skip
    for group in groups:
        found = [
            copy_of(each.chunk_id, [[n for [n] in prefix] for prefix in each.prefixes])
            for number in group
            for each in copies.found[number]
        ]
        assert len(found) == len(set(found))
        assert set(found) == expected(group, stored)
