"""What a chunk is computed behind is chosen once, and found again when one of it is deleted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kvstitch.retriever import ChunkSettings, Document, Retriever, Scope
from kvstitch.retriever.prefixes.neutral import neutral_prefixes
from kvstitch.retriever.prefixes.prefix_choice import PrefixKind, PrefixRule, prefix_starts
from kvstitch.retriever.prefixes.primer_groups import GROUP, central
from kvstitch.retriever.scope import DEFAULT_SCOPE
from tests.fakes.models import HashingEmbedder, WordCounter
from tests.retriever.conftest import OpenRetriever

TOPICS = ("fox forest hunts", "whale sea sings", "bread oven flour")
KINDS: tuple[PrefixKind, PrefixKind] = ("primer", "neighbours")


def corpus(each: int, first: int = 0) -> list[Document]:
    """Documents of one chunk on three topics."""
    return [
        Document(f"{topic.split()[0]}-{n}", f"{topic} number{n}")
        for n in range(first, first + each)
        for topic in TOPICS
    ]


@pytest.fixture
def retriever(open_retriever: OpenRetriever) -> Retriever:
    opened = open_retriever()
    opened.ingest(corpus(8))
    return opened


def choose(
    retriever: Retriever, doc_id: str, kind: PrefixKind, count: int = 3, max_tokens: int = 1000
) -> list[str]:
    prefixes = choose_all(retriever, doc_id, kind, count=count, max_tokens=max_tokens)
    assert len(prefixes) <= 1
    return [doc_id for prefix in prefixes for doc_id in prefix]


def choose_all(
    retriever: Retriever,
    doc_id: str,
    kind: PrefixKind = "primer",
    *,
    count: int = 3,
    primers: int = 1,
    max_tokens: int = 1000,
    scope: Scope = DEFAULT_SCOPE,
) -> list[list[str]]:
    [chunk] = retriever.catalog.chunks_of(doc_id, scope=scope)
    rule = PrefixRule(kind, count, primers)
    [chosen] = retriever.prefix_chunks.choose_all([(chunk, max_tokens)], rule, scope=scope).values()
    [remembered] = retriever.prefix_chunks.of([chunk.chunk_id], kind).values()
    assert remembered == chosen
    return [[other.doc_id for other in prefix] for prefix in chosen]


def number(retriever: Retriever, doc_id: str) -> int:
    return retriever.catalog.chunks_of(doc_id)[0].chunk_id


def test_neighbours_are_the_nearest_others_the_nearest_last(retriever: Retriever) -> None:
    found = choose(retriever, "fox-2", "neighbours")
    assert len(found) == 3
    assert all(doc_id.startswith("fox-") and doc_id != "fox-2" for doc_id in found)
    ranked = [p.chunk.doc_id for p in retriever.search("fox forest hunts number2", 4)]
    assert found == ranked[1:][::-1]


def test_a_primer_is_the_same_for_a_whole_group(retriever: Retriever) -> None:
    """A small collection is one group; its central chunks stand behind each other, too."""
    found = {tuple(choose(retriever, d.doc_id, "primer")) for d in corpus(8)}
    full = {names for names in found if len(names) == 3}
    assert len(full) == 1
    [primer] = full
    assert found - full == {tuple(name for name in primer if name != own) for own in primer}


def test_a_grown_collection_has_groups_by_topic(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(corpus(GROUP))
    primers = {d.doc_id: choose(retriever, d.doc_id, "primer", 2) for d in corpus(GROUP)}
    same = [
        all(name.split("-")[0] == own.split("-")[0] for name in names)
        for own, names in primers.items()
    ]
    assert sum(same) / len(same) > 0.9
    assert 3 <= len({tuple(sorted(names)) for names in primers.values() if len(names) == 2}) <= 6


def test_a_primer_s_own_chunks_get_the_next_group_s(open_retriever: OpenRetriever) -> None:
    """Nobody stands behind a part of a primer that is computed for one chunk alone."""
    retriever = open_retriever()
    retriever.ingest(corpus(GROUP))
    primers = [choose(retriever, d.doc_id, "primer") for d in corpus(GROUP)]
    central_ids = {name for names in primers for name in names}
    assert len(central_ids) >= 6
    assert all(len(names) == 3 for names in primers)
    assert len({tuple(names) for names in primers}) == len(central_ids) / 3


def test_a_group_has_several_primers(open_retriever: OpenRetriever) -> None:
    """Each is the same for the whole group, but for the one that a chunk is in itself."""
    retriever = open_retriever()
    retriever.ingest(corpus(GROUP))
    chosen = {d.doc_id: choose_all(retriever, d.doc_id, primers=3) for d in corpus(GROUP)}
    primers = {tuple(prefix) for prefixes in chosen.values() for prefix in prefixes}
    assert all(len(prefix) == 3 for prefix in primers)
    members = [doc_id for prefix in primers for doc_id in prefix]
    assert len(set(members)) == len(members), "no chunk is in two"
    for doc_id, prefixes in chosen.items():
        assert len(prefixes) == (2 if doc_id in members else 3)
        assert all(doc_id not in prefix for prefix in prefixes)
        assert len({name.split("-")[0] for prefix in prefixes for name in prefix}) == 1
    alone = choose(retriever, "fox-2", "primer")
    assert alone in chosen["fox-2"] or "fox-2" in members, "one primer is the first of several"


def test_a_small_collection_has_as_many_primers_as_it_can(retriever: Retriever) -> None:
    few = retriever.catalog.counts().chunks
    assert few // 3 >= 2
    before = choose_all(retriever, "fox-2", primers=9)
    assert 1 <= len(before) < 9
    retriever.ingest(corpus(GROUP, first=100))
    more = choose_all(retriever, "fox-2", primers=9)
    assert len(more) > len(before), "made anew as soon as there are enough"


def test_several_primers_are_known_when_a_chunk_of_theirs_goes(
    open_retriever: OpenRetriever,
) -> None:
    retriever = open_retriever()
    retriever.ingest(corpus(GROUP))
    prefixes = choose_all(retriever, "fox-2", primers=3)
    lost = number(retriever, prefixes[-1][0])
    behind = retriever.prefix_chunks.behind([lost])[lost]
    [ours] = [each for each in behind if each.doc_id == "fox-2"]
    assert [[c.doc_id for c in prefix] for prefix in ours.prefixes] == prefixes


def test_groups_of_a_small_collection_stay_as_it_grows(retriever: Retriever) -> None:
    before = choose(retriever, "fox-2", "primer")
    retriever.ingest(corpus(3, first=100))
    assert choose(retriever, "fox-2", "primer") == before
    retriever.ingest(corpus(GROUP, first=200))
    assert choose(retriever, "whale-200", "primer") != before, "there are further groups now"


def test_nothing_stands_behind_itself_or_what_says_the_same(retriever: Retriever) -> None:
    retriever.ingest([Document("copy", "fox forest hunts number2")])
    for kind in KINDS:
        assert not {"fox-2", "copy"} & set(choose(retriever, "fox-2", kind, 24))


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_fit_into_the_context(retriever: Retriever, kind: PrefixKind) -> None:
    """Every chunk has four words."""
    assert len(choose(retriever, "fox-2", kind, 3, max_tokens=8)) == 2
    assert choose(retriever, "fox-2", kind, 3, max_tokens=3) == []


def test_a_collection_of_one_has_no_neighbours(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest([Document("only", "a b c")])
    assert choose(retriever, "only", "neighbours") == []


def test_where_there_are_too_few_neutral_passages_are_primers(
    open_retriever: OpenRetriever,
) -> None:
    """Until there are enough; what has them is then open again."""
    retriever = open_retriever()
    retriever.ingest([Document("fox-0", "fox forest hunts number0")])
    [chunk] = retriever.catalog.chunks_of("fox-0")
    prefixes, rule = retriever.prefix_chunks, PrefixRule("primer", 3, 3)
    wanted = [(chunk, 9999)]
    [chosen] = prefixes.choose_all(wanted, rule, scope=DEFAULT_SCOPE).values()
    assert chosen == neutral_prefixes(3, 3) and [len(each) for each in chosen] == [3, 3, 3]
    prefixes.set_exact([chunk.chunk_id])
    assert prefixes.of([chunk.chunk_id], "primer", made=True) == {chunk.chunk_id: chosen}
    [stored] = prefixes.prefixed([chunk.chunk_id])
    assert list(stored.prefixes) == chosen
    assert prefixes.open("primer", 9, count=9) == []
    retriever.ingest(corpus(4, first=1))
    prefixes.leave([doc.doc_id for doc in corpus(4, first=1)], "primer", scope=DEFAULT_SCOPE)
    assert "fox-0" in {doc_id for _, doc_id in prefixes.open("primer", 99, count=9)}
    [chosen] = prefixes.choose_all(wanted, rule, scope=DEFAULT_SCOPE).values()
    assert chosen and all(other.doc_id for each in chosen for other in each)


def test_prefixes_are_of_the_same_collection(retriever: Retriever) -> None:
    other = Scope("acme", "default")
    retriever.ingest([Document("own", "fox forest hunts number2")], scope=other)
    [chunk] = retriever.catalog.chunks_of("own", scope=other)
    for kind in KINDS:
        chosen = retriever.prefix_chunks.choose_all(
            [(chunk, 1000)], PrefixRule(kind, 3), scope=other
        )
        assert chosen == {chunk.chunk_id: neutral_prefixes(3, 1) if kind == "primer" else []}


def test_what_stands_behind_a_chunk_is_found_before_it_is_deleted(retriever: Retriever) -> None:
    prefixes = retriever.prefix_chunks
    lost, *rest = choose(retriever, "fox-2", "neighbours")
    own = number(retriever, "fox-2")
    [prefixed] = prefixes.behind([number(retriever, lost)])[number(retriever, lost)]
    assert prefixed.doc_id == "fox-2"
    assert [[c.doc_id for c in prefix] for prefix in prefixed.prefixes] == [[lost, *rest]]

    [gone] = retriever.delete([lost])
    assert prefixes.of([own], "neighbours") == {own: []}, "its KV behind them is to be purged"
    prefixes.forget([gone])
    assert prefixes.of([own], "neighbours") == {}
    assert lost not in choose(retriever, "fox-2", "neighbours")


def test_a_primer_that_lost_a_chunk_is_replaced(retriever: Retriever) -> None:
    before = choose(retriever, "fox-2", "primer")
    gone = retriever.delete([before[0]])
    retriever.prefix_chunks.forget(gone)
    after = choose(retriever, "fox-2" if before[0] != "fox-2" else "fox-3", "primer")
    assert len(after) >= 2
    assert before[0] not in after


def test_documents_are_open_until_both_copies_are_stored(retriever: Retriever) -> None:
    prefixes = retriever.prefix_chunks
    assert len(prefixes.open("primer", 100, count=3)) == 24
    for document in corpus(8):
        choose(retriever, document.doc_id, "primer")
    assert len(prefixes.open("primer", 100, count=3)) == 24
    prefixes.set_exact([number(retriever, d.doc_id) for d in corpus(8)])
    assert prefixes.open("primer", 100, count=3) == []
    assert len(prefixes.open("neighbours", 5, count=3)) == 5, "another kind is to be chosen anew"
    assert prefixes.of([number(retriever, "fox-1")], "neighbours") == {}


def test_prompts_take_a_prefix_once_the_chunk_is_stored_behind_it(retriever: Retriever) -> None:
    prefixes, own = retriever.prefix_chunks, number(retriever, "fox-2")
    chosen = choose(retriever, "fox-2", "primer")
    assert prefixes.of([own], "primer", made=True) == {}
    prefixes.set_made([own])
    [[now]] = prefixes.of([own], "primer", made=True).values()
    assert [chunk.doc_id for chunk in now] == chosen


@pytest.mark.parametrize("open_database", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_documents_that_were_left_are_not_open(retriever: Retriever, kind: PrefixKind) -> None:
    prefixes, own = retriever.prefix_chunks, number(retriever, "fox-2")
    choose(retriever, "whale-1", kind)
    choose(retriever, "whale-2", kind)
    prefixes.set_made([number(retriever, "whale-2")])
    prefixes.leave(["fox-2", "whale-1", "whale-2"], kind, scope=DEFAULT_SCOPE)
    prefixes.leave(["fox-3"], kind, scope=Scope("", "other"))
    still_open = {doc_id for _, doc_id in prefixes.open(kind, 100, count=3)}
    assert still_open == {d.doc_id for d in corpus(8)} - {"fox-2", "whale-1", "whale-2"}
    made = prefixes.of([own, number(retriever, "whale-1")], kind, made=True)
    assert made == {}, "not stored behind a prefix"
    assert prefixes.of([number(retriever, "whale-2")], kind, made=True), "what is stored is used"
    assert len(choose(retriever, "fox-2", kind)) == 3, "ingested again, it gets its prefix"
    prefixes.set_made([number(retriever, "whale-1")])
    still_open = {doc_id for _, doc_id in prefixes.open(kind, 100, count=3)}
    assert {"fox-2", "whale-1"} <= still_open, "and is stored alone, too"


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_that_is_chosen_again_stays_in_use(retriever: Retriever, kind: PrefixKind) -> None:
    """Prompts would compute until what is stored behind it was stored again."""
    prefixes, ids = retriever.prefix_chunks, [number(retriever, "fox-2")]
    choose(retriever, "fox-2", kind)
    prefixes.set_made(ids)
    chosen = prefixes.of(ids, kind, made=True)
    assert chosen[ids[0]]
    choose(retriever, "fox-2", kind)
    assert prefixes.of(ids, kind, made=True) == chosen
    choose(retriever, "fox-2", kind, 2)
    assert not prefixes.of(ids, kind, made=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_chosen_among_too_few_is_open_again_when_there_are_more(
    open_retriever: OpenRetriever, kind: PrefixKind
) -> None:
    retriever = open_retriever()
    retriever.ingest(corpus(1)[:2])
    prefixes = retriever.prefix_chunks

    def store_all() -> None:
        while found := prefixes.open(kind, 100, count=3):
            for _, doc_id in found:
                choose(retriever, doc_id, kind)
                prefixes.set_exact([number(retriever, doc_id)])

    store_all()
    retriever.ingest(corpus(1)[2:])
    store_all()
    retriever.ingest(corpus(1, first=1))
    for new in corpus(1, first=1):
        choose(retriever, new.doc_id, kind)
        prefixes.set_exact([number(retriever, new.doc_id)])
    found = {doc_id for _, doc_id in prefixes.open(kind, 100, count=3)}
    assert {"fox-0", "whale-0", "bread-0"} <= found
    store_all()
    assert prefixes.open(kind, 100, count=2) == prefixes.open(kind, 100, count=1) == []
    lengths = [len(choose(retriever, d.doc_id, kind)) for d in corpus(2)]
    assert sorted(lengths) == ([2, 2, 2, 3, 3, 3] if kind == "primer" else [3] * 6)


def test_identical_texts_are_not_looked_at_for_ever(retriever: Retriever) -> None:
    """There are many, and none that a chunk could stand behind."""
    other = Scope("", "same")
    retriever.ingest([Document(f"d{n}", "the same words") for n in range(9)], scope=other)
    prefixes = retriever.prefix_chunks
    for n in range(9):
        [chunk] = retriever.catalog.chunks_of(f"d{n}", scope=other)
        for kind in KINDS:
            rule = PrefixRule(kind, 3)
            [chosen] = prefixes.choose_all([(chunk, 99)], rule, scope=other).values()
            assert chosen == []
            prefixes.set_exact([chunk.chunk_id])
    assert all(scope != other for scope, _ in prefixes.open("neighbours", 99, count=3))


# -- reading groups --------------------------------------------------------------------------------

READERS = ("", "finance", "staff")


def readers_of(retriever: Retriever, doc_id: str) -> str:
    stored = retriever.catalog.get(doc_id)
    assert stored is not None
    return ",".join(stored.readers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("each", [2, 8, GROUP])
def test_a_chunk_stands_behind_its_readers_and_everybody_s_only(
    open_retriever: OpenRetriever, kind: PrefixKind, each: int
) -> None:
    """The three groups have the same topics, so that what is nearest is often another's."""
    retriever = open_retriever()
    docs = [
        Document(f"{readers}-{doc.doc_id}", f"{doc.text} {readers}", readers=readers)
        for doc in corpus(each)
        for readers in READERS
    ]
    retriever.ingest(docs)
    asked = docs[:: each // 6 or 1]  # one in five of a whole group
    behind = {doc.doc_id: choose(retriever, doc.doc_id, kind) for doc in asked}
    assert all(len(others) >= 2 for others in behind.values())
    for name, others in behind.items():
        found = {readers_of(retriever, other) for other in others}
        assert found <= {"", name.partition("-")[0]}
    restricted = [others for name, others in behind.items() if not name.startswith("-")]
    own = any(readers_of(retriever, other) for others in restricted for other in others)
    assert own or each == 2, "its own group's, too"


def test_a_group_too_small_for_primers_has_everybody_s(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(corpus(4))
    retriever.ingest([Document("secret", "fox forest hunts secretly", readers="finance")])
    found = choose(retriever, "secret", "primer")
    assert len(found) == 3 and {readers_of(retriever, other) for other in found} == {""}
    assert all("secret" not in choose(retriever, d.doc_id, "neighbours", 9) for d in corpus(4))


def test_other_readers_are_another_revision(retriever: Retriever) -> None:
    """Its old chunks, and what stood behind them, are then purged as of any changed document."""
    [before] = retriever.catalog.chunks_of("fox-2")
    document = Document("fox-2", "fox forest hunts number2", readers="finance")
    [changed] = retriever.ingest([document])
    assert changed.status == "updated" and changed.removed_chunk_ids == [before.chunk_id]
    assert retriever.ingest([document])[0].status == "unchanged"
    assert readers_of(retriever, "fox-2") == "finance"
    assert "fox-2" not in choose(retriever, "fox-1", "neighbours", 9)


def test_other_writers_are_another_revision_too(retriever: Retriever) -> None:
    """What stands before it was written by others, and it stood before what others wrote."""
    first = Document("fox-2", "fox forest hunts number2", writers="finance")
    assert retriever.ingest([first])[0].status == "updated"
    assert retriever.ingest([first])[0].status == "unchanged"
    assert choose(retriever, "fox-2", "neighbours", 9)  # of those that change everything
    assert "fox-2" not in choose(retriever, "fox-1", "neighbours", 9)


# -- whose text stands before whose ----------------------------------------------------------------

WRITERS = ("", "*", "finance", "staff")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("each", [1, 4, GROUP])
def test_nobody_s_text_stands_before_what_they_may_not_change(
    open_retriever: OpenRetriever, kind: PrefixKind, each: int
) -> None:
    """All readers and writers have the same topics, so that what is nearest is often another's."""
    retriever = open_retriever()
    every = [(readers, writers) for readers in ("", "staff") for writers in WRITERS]
    of = {
        f"{doc.doc_id} {owners}": Document(
            f"{doc.doc_id} {owners}", f"{doc.text} {owners}", readers=owners[0], writers=owners[1]
        )
        for doc in corpus(each)
        for owners in every
    }
    retriever.ingest(of.values())
    stood = 0
    for doc in list(of.values())[:: each // 6 or 1]:  # one in five of a whole group
        for other in filter(None, choose(retriever, doc.doc_id, kind)):
            before = of[other]
            assert before.readers in ("", doc.readers)
            assert before.writers in ("", doc.writers)
            assert before.writers != "*" or before.readers == doc.readers
            stood += before.writers != ""
    assert stood or each == 1, "behind their own writers', too"


@pytest.mark.parametrize("seed", range(4))
def test_planted_notes_stand_before_nothing_of_others(
    open_retriever: OpenRetriever, seed: int
) -> None:
    """First or in between, before the group has primers of its own or after: what stands before
    other documents is what it would be without the notes."""
    notes = [Document(f"note-{n}", f"fox forest hunts number{n} planted", writers="guests")
             for n in range(12)]  # fmt: skip
    docs = [*corpus(GROUP // 2), *notes]
    random.Random(seed).shuffle(docs)
    if seed == 0:
        docs.sort(key=lambda doc: doc not in notes)
    found = []
    for scope in (Scope("", "with"), Scope("", "without")):
        retriever = open_retriever()
        for doc in docs:
            if scope.collection == "with" or doc not in notes:
                retriever.ingest([doc], scope=scope)
                choose_all(retriever, doc.doc_id, primers=3, scope=scope)
        theirs = [doc.doc_id for doc in docs if doc not in notes]
        found.append({n: choose_all(retriever, n, primers=3, scope=scope) for n in theirs})
    assert found[0] == found[1]
    assert not any(n.startswith("note") for each in found[0].values() for p in each for n in p)


@pytest.mark.parametrize("open_database", ["postgresql"], indirect=True)
def test_in_a_shared_catalog_all_that_is_open_is_found(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(corpus(8))
    found = [doc_id for _, doc_id in retriever.prefix_chunks.open("primer", 99, count=3)]
    assert sorted(found) == sorted(document.doc_id for document in corpus(8))
    assert len(retriever.prefix_chunks.open("primer", 5, count=3)) == 5


def test_a_deleted_document_leaves_nothing(retriever: Retriever) -> None:
    choose(retriever, "fox-2", "neighbours")
    retriever.delete(["fox-2"])
    assert ("", "default", "fox-2") not in {
        (scope.tenant, scope.collection, doc)
        for scope, doc in retriever.prefix_chunks.open("primer", 99, count=3)
    }
    assert retriever.prefix_chunks.prefixed([1, 2, 3, 4, 5, 6, 7, 8, 9]) == []


def test_choices_survive_a_restart(tmp_path: Path) -> None:
    def opened() -> Retriever:
        made = Retriever.in_folder(tmp_path, HashingEmbedder(), ChunkSettings(WordCounter(), 64))
        made.start()
        return made

    retriever = opened()
    retriever.ingest(corpus(8))
    before = {d.doc_id: choose(retriever, d.doc_id, "primer") for d in corpus(8)}
    retriever.close()
    again = opened()
    of = again.prefix_chunks.of([number(again, doc_id) for doc_id in before], "primer")
    for doc_id, names in before.items():
        [prefix] = of[number(again, doc_id)]
        assert [c.doc_id for c in prefix] == names
    again.close()


def test_central_vectors_are_of_their_group() -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(4, dtype=np.float32)
    vectors = np.concatenate([c + 0.05 * rng.standard_normal((20, 4)) for c in centres])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = central(vectors.astype(np.float32), 4, 3)
    assert found.shape == (4, 3)
    assert {frozenset(int(place) // 20 for place in row) for row in found} == {
        frozenset([topic]) for topic in range(4)
    }
    assert (found == central(vectors.astype(np.float32), 4, 3)).all()


RULE = PrefixRule("primer", 3, document_tokens=8)
LONG = "\n\n".join(f"part{n} of one" for n in range(9))


def of_document(retriever: Retriever, rule: PrefixRule, most: int = 1000) -> list[list[list[str]]]:
    """The first word of each chunk of each prefix of the chunks of the document `long`."""
    chunks = retriever.catalog.chunks_of("long")
    found = retriever.prefix_chunks.choose_all(
        [(chunk, most) for chunk in reversed(chunks)], rule, scope=DEFAULT_SCOPE
    )
    return [
        [[other.text.split()[0] for other in prefix] for prefix in found[chunk.chunk_id]]
        for chunk in chunks
    ]


@pytest.fixture
def with_long(open_retriever: OpenRetriever) -> Retriever:
    opened = open_retriever(max_tokens=3)
    opened.ingest([*corpus(8), Document("long", LONG)])
    assert [c.tokens for c in opened.catalog.chunks_of("long")] == [3] * 9
    return opened


def test_a_chunk_stands_behind_the_earlier_ones_of_its_document(with_long: Retriever) -> None:
    first, *later = of_document(with_long, RULE)
    assert first and all(not name.startswith("part") for prefix in first for name in prefix)
    names = [[int(name.removeprefix("part")) for name in prefix] for [prefix] in later]
    assert names == [[0], [0, 1], [2], [2, 3], [4], [4, 5], [6], [6, 7]]


def test_prefixes_within_a_document_are_parts_of_one_another(with_long: Retriever) -> None:
    rule = PrefixRule("primer", 3, document_tokens=15)
    [_, *later] = of_document(with_long, rule)
    names = [[int(name.removeprefix("part")) for name in prefix] for [prefix] in later]
    assert names == [
        [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4],
        [4, 5], [4, 5, 6], [4, 5, 6, 7],  # begun anew in the middle
    ]  # fmt: skip


def test_a_book_is_looked_through_once(
    with_long: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each of its chunks: 5,000 chunks took minutes, in which no note came in."""
    seen: list[int] = []

    def counted(tokens: Sequence[int], most: int) -> list[int]:
        seen.append(len(tokens))
        return prefix_starts(tokens, most)

    monkeypatch.setattr("kvstitch.retriever.prefixes.prefix_choice.prefix_starts", counted)
    of_document(with_long, RULE)
    assert seen == [9]


def test_without_room_or_by_setting_it_has_primers(with_long: Retriever) -> None:
    primers = of_document(with_long, PrefixRule("primer", 3))
    assert len({tuple(prefix) for [prefix] in primers}) < 5  # those of groups
    assert of_document(with_long, RULE, most=2) == [[]] * 9
