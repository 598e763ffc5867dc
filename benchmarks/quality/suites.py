"""The suites by name, as prompts that are encoded as the service would encode them.

nq       a passage of Wikipedia that answers, among its nearest (`natural_questions`)
musique  several passages are needed (`musique`); with a chunk size: the nearest chunks
demo     prose about an invented county: the documents that answer, among their nearest
docs     pieces of real documentation (`documentation`) that the service's own retriever finds
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.quality.chunks import Ids, chunked
from benchmarks.quality.collection import collection, write_pieces
from benchmarks.quality.tasks import demo_prose, documentation, musique, natural_questions
from benchmarks.quality.tasks.retrieved import Embed, Passage, nearest
from kvstitch.retriever.prefixes.neutral import neutral_chunks
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.gateway.search.async_retriever import make_embedder
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import Settings
from kvstitch_tune.prompts import Prompt

SPLITS = ("dev", "test")
SUITES = ("nq", "musique", "demo", "docs")


@dataclass(frozen=True)
class Choice:
    """What to draw.

    Attributes:
        split: "dev" or "test".
        samples: at most so many prompts.
        seed: of the order of passages.
        others: nq, demo: passages beside those that answer; musique, where `chunk_tokens` is
            given: so many chunks and one more.
        chunk_tokens: most tokens of a chunk; None: a passage is a chunk.
        answer_prefix: begins the answer.
        order: nq: where the passages stand (`natural_questions.ORDERS`).
        docs: docs: the folder with the files; None: where they are fetched to.
        pieces: docs: a file to which all pieces of the collection are written.
    """

    split: str = "dev"
    samples: int = 30
    seed: int = 1
    others: int = 7
    chunk_tokens: int | None = None
    answer_prefix: str = ""
    order: str = "random"
    docs: Path | None = None
    pieces: Path | None = None


class Suites:
    """Draws prompts for one model.

    Args:
        folder: of the model.
        embed: of the retriever that finds the passages.
    """

    def __init__(self, folder: Path, embed: Embed) -> None:
        self._folder = folder
        self._builder = PromptBuilder(folder, Settings.model_validate({}))
        self._embed = embed
        self._draw: dict[str, Callable[[Choice], Iterator[Prompt]]] = {
            "nq": self._natural_questions,
            "musique": self._musique,
            "demo": self._demo,
            "docs": self._docs,
        }

    def draw(self, suite: str, choice: Choice) -> list[Prompt]:
        """Prompts of one of `SUITES`."""
        return list(self._draw[suite](choice))

    def decode(self, ids: Sequence[int]) -> str:
        return self._builder.tokenizer.decode(ids)

    def passages(self, split: str) -> list[list[int]]:
        """All passages of Natural Questions' split as they stand in prompts, as token ids."""
        asked = natural_questions.load(split)
        distinct = dict.fromkeys(each.passage for each in asked)
        return [self._builder.document_ids(p.title, p.text) for p in distinct]

    def neutral(self, count: int) -> list[list[Ids]]:
        """The neutral passages as they stand in prompts, so many together."""
        ids = [tuple(self._builder.segment(each)) for each in neutral_chunks().values()]
        return [ids[start : start + count] for start in range(0, len(ids), count)]

    def render(self, passage: Passage) -> str:
        """A passage as it stands in prompts."""
        return self._builder.format.render_document(passage.title, passage.text)

    def _natural_questions(self, choice: Choice) -> Iterator[Prompt]:
        for found in self._retrieved(choice):
            turns = [Turn("user", found.asked.question)]
            task = f"nq{choice.others}" + ("" if choice.order == "random" else f" {choice.order}")
            yield self._prompt(task, found.passages, turns, found.asked.answers, choice)

    def _retrieved(self, choice: Choice) -> Iterator[natural_questions.Retrieved]:
        return natural_questions.retrieve(
            natural_questions.load(choice.split),
            self._embed,
            others=choice.others,
            samples=choice.samples,
            seed=choice.seed,
            order=choice.order,
        )

    def _musique(self, choice: Choice) -> Iterator[Prompt]:
        asked = musique.load(choice.split)
        if choice.chunk_tokens is not None:
            yield from self._nearest_chunks(asked, choice, choice.chunk_tokens)
            return
        for each in asked[: choice.samples]:
            passages = [Passage("", text) for text in each.passages]
            turns = [Turn("user", each.question)]
            yield self._prompt("musique", passages, turns, each.answers, choice)

    def _nearest_chunks(
        self, asked: Sequence[musique.Asked], choice: Choice, limit: int
    ) -> Iterator[Prompt]:
        """The passages as the service would cut them, and what it would find of each question's.

        More samples than questions: the same chunks again in another order.
        """
        settings = replace(self._builder.chunking(), max_tokens=limit)
        found: list[list[Passage]] = []
        for each in asked[: choice.samples]:
            pool = [
                Passage("", text[span.start : span.end])
                for text in each.passages
                for span in settings.split(text)
            ]
            [ranked] = nearest([each.question], pool, self._embed)
            found.append(ranked[: choice.others + 1])
        for sample in range(choice.samples):
            each, passages = asked[sample % len(asked)], found[sample % len(asked)][:]
            random.Random(f"{choice.seed} {sample} {limit}").shuffle(passages)
            turns = [Turn("user", each.question)]
            whole = replace(choice, chunk_tokens=None)
            yield self._prompt(f"musique {limit}", passages, turns, each.answers, whole)

    def _demo(self, choice: Choice) -> Iterator[Prompt]:
        found = demo_prose.retrieve(choice.split, self._embed, others=choice.others)
        for number, (asked, passages) in enumerate(found):
            if number == choice.samples:
                break
            turns = [Turn("user", asked.question)]
            yield self._prompt(f"demo {asked.kind}", passages, turns, asked.answers, choice)

    def _docs(self, choice: Choice) -> Iterator[Prompt]:
        settings = Settings.model_validate({"chunk_tokens": choice.chunk_tokens})
        builder, embedder = PromptBuilder(self._folder, settings), make_embedder(settings)
        documents = documentation.read(choice.docs or documentation.default_folder())
        with collection(documents, builder, embedder) as found:
            if choice.pieces is not None:
                write_pieces(choice.pieces, found.pieces())
            for asked in documentation.load(choice.split)[: choice.samples]:
                yield found.prompt("docs", asked.question, asked.answers)

    def _prompt(
        self,
        task: str,
        passages: Sequence[Passage],
        turns: Sequence[Turn],
        answers: Sequence[str],
        choice: Choice,
    ) -> Prompt:
        tokenizer = self._builder.tokenizer
        documents = [self._builder.document_ids(p.title, p.text) for p in passages]
        question = self._builder.encode_question(turns)
        question += tokenizer.encode_text(choice.answer_prefix)
        system, chunks = self._builder.system, chunked(documents, choice.chunk_tokens)
        return Prompt(task, tuple(system), chunks, tuple(question), tuple(answers))
