"""The suites by name, as samples that are encoded with one model's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path

from benchmarks.quality import longbench, ruler
from benchmarks.quality.encode import Encoder
from benchmarks.quality.sample import Sample, TextSample
from benchmarks.quality.tasks import multidoc, needle
from demo.language import words
from demo.language.tasks import TASKS
from service.errors import InvalidRequest, PromptTooLong

CHUNK_TOKENS = 512
"""Chunk size of all suites but our own (docs/specification.md §5.3)."""
SHORT_CONTEXT = 1024
"""Models and prompts with at most this many tokens get their own needle grid and budgets."""
SHORT_LENGTHS, SHORT_DEPTHS = (150, 200, 250, 300, 350, 400), (0, 20, 40, 60, 80, 100)
"""Needle grid for a model with contexts as short as the demo model's."""
SMALL_WORDS = ruler.Words(
    adjectives=words.COLOURS,
    nouns=words.BEASTS + words.BIRDS + words.PETS,
    verbs=words.HOBBIES + words.WORKPLACES + words.INSTRUMENTS,
)
"""RULER's words for the demo model: each is one token."""


@dataclass(frozen=True)
class Choice:
    """What to draw.

    Attributes:
        suite: name of the suite.
        tasks: names of tasks; empty for all.
        samples: for each task and seed; on a needle grid for each cell.
        seeds: of the samples.
        chunk_tokens: tokens of a document.
        length: RULER: tokens of prompt and answer.
        small_words: RULER: use words that the demo model knows.
        lengths: needle: tokens.
        depths: needle: percent.
        data: LongBench: folder with its files.
        limit: LongBench: tokens that a prompt is truncated to.
    """

    suite: str = "multidoc"
    tasks: Sequence[str] = ()
    samples: int = 100
    seeds: Sequence[int] = multidoc.TEST
    chunk_tokens: int | None = None
    length: int = 4096
    small_words: bool = False
    lengths: Sequence[int] = ()
    depths: Sequence[int] = ()
    data: Path | None = None
    limit: int | None = None


def draw(choice: Choice, encoder: Encoder, max_context: int) -> list[Sample]:
    """Draws samples; tasks alternate, so that a run that is cut short has some of each.

    Raises:
        InvalidRequest: there is no such suite, task or file.
        PromptTooLong: the model cannot hold a prompt.
    """
    if choice.suite not in SUITES:
        raise InvalidRequest(
            f"no suite {choice.suite!r}; there are {', '.join(SUITES)}", field="suite"
        )
    if choice.samples < 1:
        raise InvalidRequest("samples is at least 1", field="samples")
    samples = [
        encoder.encode(text, chunk_tokens(choice)) for text in SUITES[choice.suite](choice, encoder)
    ]
    for sample in samples:
        needed = sample.tokens + sample.text.answer_tokens
        if needed > max_context:
            raise PromptTooLong(
                f"{sample.task}, sample {sample.text.number}: prompt and answer have {needed} "
                f"tokens and the model takes {max_context}: leave the task out, or give a smaller "
                "--length, --lengths or --limit",
                field="samples",
            )
    return list({sample.key: sample for sample in samples}.values())


def chunk_tokens(choice: Choice) -> int:
    own = multidoc.CHUNK_TOKENS if choice.suite in _OURS else CHUNK_TOKENS
    return choice.chunk_tokens or own


def _multidoc(choice: Choice, encoder: Encoder) -> Iterator[TextSample]:
    names = _known(choice, list(TASKS))
    return multidoc.generate(names, seeds=choice.seeds, samples=choice.samples)


def _short_needle(choice: Choice, encoder: Encoder) -> Iterator[TextSample]:
    return multidoc.needles(
        count=encoder.count,
        lengths=choice.lengths or SHORT_LENGTHS,
        depths=choice.depths or SHORT_DEPTHS,
        seeds=choice.seeds,
        samples=choice.samples,
    )


def _ruler(choice: Choice, encoder: Encoder) -> Iterator[TextSample]:
    plain = [t for t in ruler.tasks() if choice.data is not None or not t.startswith("qa_")]
    names = list(choice.tasks) or plain

    def one(task: str, seed: int) -> Iterator[TextSample]:
        made = ruler.generate(
            task,
            count=encoder.count,
            length=choice.length,
            samples=choice.samples,
            seed=seed,
            words=SMALL_WORDS if choice.small_words else ruler.ENGLISH,
            data=choice.data,
        )
        return (replace(s, details={**s.details, "seed": seed}) for s in made)

    return _in_turn([one(task, seed) for seed in choice.seeds for task in names])


def _needle(choice: Choice, encoder: Encoder) -> Iterator[TextSample]:
    """Needle samples, one for each cell, because nothing in them is random."""
    return needle.generate(
        count=encoder.count,
        lengths=choice.lengths or needle.LENGTHS,
        depths=choice.depths or needle.DEPTHS,
    )


def _longbench(choice: Choice, encoder: Encoder) -> Iterator[TextSample]:
    if choice.data is None:
        raise InvalidRequest("LongBench is read from a folder: give --data", field="data")
    names, folder = _known(choice, list(longbench.TASKS), list(longbench.E_TASKS)), choice.data
    texts = _in_turn([longbench.load(folder, name, samples=choice.samples) for name in names])
    if choice.limit is None:
        return texts
    limit = choice.limit
    return (longbench.truncated(t, encoder.tokenizer.encode_offsets, limit) for t in texts)


SUITES: dict[str, Callable[[Choice, Encoder], Iterator[TextSample]]] = {
    "multidoc": _multidoc,
    "short_needle": _short_needle,
    "ruler": _ruler,
    "needle": _needle,
    "longbench": _longbench,
}
_OURS = ("multidoc", "short_needle")
RANKED_FROM = {"multidoc": 0.8, "short_needle": 0.8, "ruler": 0.8}
"""Suites whose tasks are ranked only if full prefill reaches this score; elsewhere all are.

A lower score of full prefill on these suites means that the model has not learnt the task.
"""


def _known(choice: Choice, names: Sequence[str], others: Sequence[str] = ()) -> Sequence[str]:
    for name in choice.tasks:
        if name not in names and name not in others:
            raise InvalidRequest(
                f"{choice.suite} has no task {name!r}: take one of {', '.join([*names, *others])}",
                field="tasks",
            )
    return choice.tasks or names


def _in_turn(tasks: Iterable[Iterator[TextSample]]) -> Iterator[TextSample]:
    rows = zip_longest(*tasks)
    return (text for text in chain.from_iterable(rows) if text is not None)
