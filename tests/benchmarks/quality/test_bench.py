"""The quality bench on the demo model: it answers as the engine does, whoever else is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.common.engine import open_engine, precompute_now
from benchmarks.quality.bench import Bench, Result
from benchmarks.quality.configuration import METHODS_FOLDER, Configuration
from benchmarks.quality.report.subject import Place, Subject, longest
from benchmarks.quality.sample import Sample
from benchmarks.quality.suites import Choice, draw
from kvstore import MemoryTier, TieredStore
from service.errors import PromptTooLong, WorkerFault
from service.messages.replies import Done, TokenItem
from service.messages.requests import ChunkTokens, Generate, Method, Sampling
from service.settings import demo_model
from service.worker.api import add_folder

FULL = Configuration("full", Method("vanilla"))
GUESS = Configuration("guess", Method("vanilla"), documents=False)
PIE = Configuration("pie", Method("pie"), prefix_mode="system")
EVERY = [
    FULL,
    PIE,
    Configuration("a3", Method("a3", {"ratio": 0.1}), prefix_mode="system"),
    Configuration("scout", Method("question_scout"), codec="int8", prefix_mode="system"),
    Configuration("random", Method("random_rows")),
    Configuration("snapkv", Method("vanilla"), Method("snapkv"), budget_share=0.3),
    Configuration("kvec", Method("a3"), Method("kvec", {"budget": 90}), prefix_mode="system"),
]


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(Place(demo_model(), "float32", "cpu", 1))


@pytest.fixture(scope="module")
def samples(subject: Subject) -> list[Sample]:
    """One of a few tokens' answer, one of several."""
    choice = Choice(samples=1, seeds=(5,), tasks=("single", "list"))
    return draw(choice, subject.encoder, subject.decoder.max_context)


@pytest.fixture(scope="module")
def bench(subject: Subject, samples: list[Sample]) -> Iterator[Bench]:
    with subject.bench(longest(samples)) as bench:
        yield bench


@pytest.fixture(scope="module")
def together(bench: Bench, samples: list[Sample]) -> dict[tuple[str, str], Result]:
    """All samples under all configurations in one batch."""
    made = bench.measure(samples, [EVERY] * len(samples))
    return {(r.prompt, r.configuration): r for r in made}


def through_the_engine(subject: Subject, sample: Sample, asked: Configuration) -> str:
    """The same request to an engine of its own, with stored chunks, nobody else there."""
    add_folder(METHODS_FOLDER)
    with (
        TieredStore([MemoryTier(1 << 28)]) as store,
        open_engine(
            subject.decoder,
            store,
            pool_tokens=1024,
            codec=asked.codec,
            fingerprint=subject.fingerprint,
            facts=subject.facts,
            loader_threads=1,
        ) as engine,
    ):
        documents = [ChunkTokens(i, list(ids)) for i, ids in enumerate(sample.documents)]
        for address in engine.admission.addresses(sample.system, documents, asked.prefix_mode, ""):
            assert address is not None
            precompute_now(engine, address)
        engine.submit(
            Generate(
                "alone",
                sample.system,
                documents,
                sample.question,
                asked.fusion,
                asked.evicting(sample.tokens),
                Sampling(max_tokens=sample.text.answer_tokens),
                asked.prefix_mode,
            )
        )
        tokens, done = [], False
        while not done:
            for event in engine.step():
                if isinstance(event, TokenItem):
                    tokens.append(event.token)
                done = done or isinstance(event, Done)
    return subject.encoder.tokenizer.decode(tokens)


@pytest.mark.parametrize("asked", EVERY, ids=lambda c: c.name)
def test_an_answer_is_the_engines(
    subject: Subject,
    samples: list[Sample],
    together: dict[tuple[str, str], Result],
    asked: Configuration,
) -> None:
    for sample in samples:
        expected = through_the_engine(subject, sample, asked)
        assert expected
        assert together[sample.key, asked.key].text == expected


def test_alone_as_in_a_batch(
    bench: Bench, samples: list[Sample], together: dict[tuple[str, str], Result]
) -> None:
    for configuration in EVERY:
        for sample in samples:
            [alone] = bench.measure([sample], [[configuration]])
            assert alone == together[sample.key, configuration.key]


def test_every_sample_has_its_own_configurations(bench: Bench, samples: list[Sample]) -> None:
    first, second = samples
    made = bench.measure(samples, [[FULL, PIE], [PIE]])
    assert {(r.prompt, r.configuration) for r in made} == {
        (first.key, FULL.key), (first.key, PIE.key), (second.key, PIE.key),
    }  # fmt: skip


def test_what_an_answer_costs(
    samples: list[Sample], together: dict[tuple[str, str], Result]
) -> None:
    for sample in samples:
        full, pie = together[sample.key, FULL.key], together[sample.key, PIE.key]
        assert (full.flops, full.rows, full.kept, full.coverage) == (1, 1, 1, 1)
        assert (pie.rows, pie.kept) == (0, 1)
        assert 0 < pie.flops < 0.1
        evicted = together[sample.key, EVERY[5].key]
        assert evicted.kept < 0.3 < evicted.coverage < 1
        assert full.tokens == pie.tokens == sample.tokens


def test_a_guess_has_no_documents(bench: Bench, samples: list[Sample]) -> None:
    """It does not change with them."""
    sample = samples[0]
    other = replace(sample, documents=samples[1].documents)
    [guess], [again] = bench.measure([sample], [[GUESS]]), bench.measure([other], [[GUESS]])
    assert guess.text == again.text
    assert guess.tokens == len(sample.system) + len(sample.question)


def test_a_stop_text_ends_an_answer(bench: Bench, samples: list[Sample]) -> None:
    sample = samples[1]
    [whole] = bench.measure([sample], [[FULL]])
    first, comma, _ = whole.text.partition(",")
    assert comma
    text = replace(sample.text, stop=(",", "zzz"), references=(first,))
    [cut] = bench.measure([replace(sample, text=text)], [[FULL]])
    assert cut.text == first
    assert cut.score == 1


def test_an_answer_is_no_longer_than_asked_for(bench: Bench, samples: list[Sample]) -> None:
    sample = replace(samples[1], text=replace(samples[1].text, answer_tokens=2))
    [whole], [cut] = bench.measure([samples[1]], [[FULL]]), bench.measure([sample], [[FULL]])
    assert cut.text != whole.text
    assert whole.text.startswith(cut.text)


def test_timings(bench: Bench, samples: list[Sample]) -> None:
    made = bench.time(samples[0], [FULL, PIE])
    assert [t.configuration for t in made] == [FULL.key, PIE.key]
    assert all(t.prompt == samples[0].key and t.seconds > 0 for t in made)


def test_a_refused_request_is_an_error(bench: Bench, samples: list[Sample]) -> None:
    long = replace(samples[0], documents=samples[0].documents * 20)
    with pytest.raises(PromptTooLong):
        bench.measure([long], [[FULL]])


def test_a_method_is_never_lent_rows(subject: Subject, samples: list[Sample]) -> None:
    """A store without room for a sample's chunks: its documents would be computed instead."""
    decoder, facts = subject.decoder, subject.facts
    with (
        Bench.open(
            decoder,
            facts,
            subject.fingerprint,
            lambda tokens: "",
            pool_tokens=longest(samples) * 4,
            memory_bytes=100_000,
        ) as bench,
        pytest.raises(WorkerFault, match="not in the store"),
    ):
        bench.measure(samples[:1], [[PIE]])
