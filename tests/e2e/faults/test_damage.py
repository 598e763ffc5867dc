"""A damaged, truncated or foreign chunk on SSD is never an answer: it is a miss that is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvstitch.kvstore import encode_chunk, parse_header
from tests.e2e.conftest import Documents
from tests.e2e.service import Service, tiers
from tests.kvstore.chunks import chunk_file

pytestmark = pytest.mark.exhaustive

OPERATIONS = "kvstitch_tier_operations_total"


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def of_another_model(file: Path) -> None:
    """A sound chunk, checksums and all, whose header says another model made it."""
    header = parse_header(file.read_bytes())
    spec = replace(header.spec, fingerprint="another model")
    noise = torch.Generator().manual_seed(0)
    k, v = (
        [torch.randn(spec.shape, generator=noise).to(spec.torch_dtype) for _ in range(spec.layers)]
        for _ in "kv"
    )
    file.write_bytes(chunk_file(encode_chunk(spec, k, v).under(header.key)))


DAMAGE = {
    "flipped": (flip, "corrupt"),
    "truncated": (truncate, "corrupt"),
    "foreign": (of_another_model, "refused"),
}


@pytest.fixture(scope="module")
def reading_from_disk(
    tmp_path_factory: pytest.TempPathFactory, model: Path, corpus: Documents
) -> Iterator[Service]:
    """No memory tier, so that every request reads the files; float32, so that two ways to compute
    the same rows do not differ by rounding."""
    data = tmp_path_factory.mktemp("disk") / "data"
    with Service(model, data, memory_tier_mib=0, dtype="float32") as service:
        service.ingest(corpus[-1:])  # S is stored with it
        yield service


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_bad_chunk_is_a_miss_that_is_told(
    reading_from_disk: Service, corpus: Documents, kind: str
) -> None:
    """Alone in its prompt, the bad chunk leaves a full prefill, in answer and in rows; report and
    metric name the problem; once written back the document hits again."""
    service = reading_from_disk
    damage, problem = DAMAGE[kind]
    document = corpus[list(DAMAGE).index(kind)]
    file = store(service, document)
    ask = asking(service, [document["doc_id"]])
    full_prefill = ask("vanilla")
    assert tiers(ask("pie")) == ["ssd"]
    counted = service.settled_metrics().value(OPERATIONS, tier="ssd", outcome=problem)
    damage(file)
    damaged = ask("pie")
    report = damaged["cache"]["documents"][0]
    assert report["tier"] == "cold" and report["rows_recomputed"] == report["tokens"]
    assert any(problem in text and "ssd" in text for text in report["problems"]), report
    assert damaged["text"] == full_prefill["text"]
    metrics = service.settled_metrics()
    assert metrics.value(OPERATIONS, tier="ssd", outcome=problem) == counted + 1
    back_again(service, ask)


@pytest.mark.parametrize("method", ["pie", "a3"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_the_answer_is_that_of_a_service_without_the_chunk(
    reading_from_disk: Service, corpus: Documents, kind: str, method: str
) -> None:
    """Beside a sound document: the same answer as when the chunk's file is not there at all, and
    the answer with both chunks afterwards is what it was before."""
    service = reading_from_disk
    damage, _ = DAMAGE[kind]
    number = 4 + 2 * (2 * list(DAMAGE).index(kind) + ["pie", "a3"].index(method))
    bad, sound = corpus[number : number + 2]
    file = store(service, bad)
    store(service, sound)
    both, alone = (asking(service, names) for names in ([bad["doc_id"], sound["doc_id"]],
                                                        [bad["doc_id"]]))  # fmt: skip
    stitched = both(method)
    assert set(tiers(stitched)) == {"ssd"}
    file.unlink()
    without = both(method)
    assert sorted(tiers(without)) == ["cold", "ssd"]
    back_again(service, alone)
    damage(file)
    damaged = both(method)
    assert tiers(damaged) == tiers(without)
    assert damaged["text"] == without["text"]
    back_again(service, alone)
    assert both(method)["text"] == stitched["text"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pie", "question_scout", "prophetkv"])
def test_two_chunks_of_equal_size_swapped_on_disk(reading_from_disk: Service, method: str) -> None:
    """Each is refused under the other's name: the answer is full prefill's, and the report and the
    metric name the problem."""
    service = reading_from_disk
    pair = [
        {
            "doc_id": f"{method}-{n}",
            "title": "Doors",
            "text": f"{method}: one door is {a}, one {b}.",
        }
        for n, (a, b) in enumerate([("red", "blue"), ("blue", "red")])
    ]
    files = [store(service, document) for document in pair]
    assert files[0].stat().st_size == files[1].stat().st_size
    asks = [asking(service, [document["doc_id"]]) for document in pair]
    full_prefill = [ask("vanilla")["text"] for ask in asks]
    assert [tiers(ask(method)) for ask in asks] == [["ssd"], ["ssd"]]
    counted = service.settled_metrics().value(OPERATIONS, tier="ssd", outcome="refused")
    contents = [file.read_bytes() for file in files]
    files[0].write_bytes(contents[1])
    files[1].write_bytes(contents[0])
    for ask, text in zip(asks, full_prefill, strict=True):
        answer = ask(method)
        report = answer["cache"]["documents"][0]
        assert report["tier"] == "cold" and answer["text"] == text
        assert any("refused" in problem for problem in report["problems"]), report
    metrics = service.settled_metrics()
    assert metrics.value(OPERATIONS, tier="ssd", outcome="refused") >= counted + 2
    for ask in asks:
        back_again(service, ask)


def store(service: Service, document: dict[str, str]) -> Path:
    """Ingest one document; the file of its only chunk."""
    before = service.chunk_files()
    service.ingest([document])
    (file,) = service.chunk_files() - before
    return file


def asking(service: Service, names: list[str]) -> Callable[[str], dict[str, Any]]:
    def ask(method: str) -> dict[str, Any]:
        fields = {"documents": names, "top_k": len(names), "max_tokens": 24}
        return service.ask("Which colour is it?", fusion={"method": method}, **fields)

    return ask


def back_again(service: Service, alone: Callable[[str], dict[str, Any]]) -> None:
    """The chunk is computed in spare time and written back; then it hits without a problem."""

    def hits() -> bool:
        answer = alone("pie")
        return tiers(answer) == ["ssd"] and not answer["cache"]["documents"][0]["problems"]

    service.until(hits, "the chunk is not written back")
