"""A collection of documents as it is served: cut, searched and written into prompts.

What is asked is the caller's; this knows documents and the pieces into which the service cuts them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.quality.chunks import Ids
from kvstitch.retriever import Chunk, Document, Retriever, Scope
from kvstitch.retriever.embedders import Embedder
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import Settings
from kvstitch_tune.prompts import Prompt


@dataclass(frozen=True)
class Piece:
    """A piece of a document, as it stands in prompts; `number` counts from 0 in its document."""

    document: str
    number: int
    ids: Ids


class Collection:
    """Documents that can be searched.

    Args:
        retriever: started, and holding them.
        chunks: all that it holds.
        builder: of the model's prompts.
    """

    def __init__(
        self, retriever: Retriever, chunks: Sequence[Chunk], builder: PromptBuilder
    ) -> None:
        self._retriever = retriever
        self._chunks = chunks
        self._builder = builder

    def pieces(self) -> list[Piece]:
        """All pieces, document by document."""
        return [
            Piece(chunk.doc_id, chunk.ordinal, tuple(self._builder.segment(chunk)))
            for chunk in self._chunks
        ]

    def prompt(self, task: str, question: str, answers: Sequence[str]) -> Prompt:
        """The prompt that a request with all defaults gets, with the source of each document."""
        fmt, mode = self._builder.format, Settings.model_fields["retrieval"].default
        ranked = self._retriever.search(question, fmt.top_k, scope=Scope(), mode=mode)
        chunks = [passage.chunk for passage in fmt.in_prompt_order(ranked)]
        return Prompt(
            task,
            tuple(self._builder.system),
            tuple(tuple(self._builder.segment(chunk)) for chunk in chunks),
            tuple(self._builder.encode_question([Turn("user", question)])),
            tuple(answers),
            sources=tuple((chunk.doc_id, chunk.ordinal) for chunk in chunks),
        )


def write_pieces(path: Path, pieces: Iterable[Piece]) -> None:
    """Writes pieces as `read_pieces` reads them, one a line."""
    lines = [json.dumps(asdict(piece), ensure_ascii=False) + "\n" for piece in pieces]
    path.write_text("".join(lines), encoding="utf-8")


def read_pieces(path: Path) -> list[Piece]:
    """The pieces of a file.

    Raises:
        InvalidRequest: a line is wrong; the message names it.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            raw = json.loads(line)
            found.append(Piece(raw["document"], raw["number"], tuple(raw["ids"])))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"{path}, line {number}: {error!r}; write the file with "
                "`python -m benchmarks.quality.prompts --suite docs --pieces FILE`",
                field="pieces",
            ) from error
    return found


@contextmanager
def collection(
    documents: Sequence[Document], builder: PromptBuilder, embedder: Embedder
) -> Iterator[Collection]:
    """A collection in a folder that is gone afterwards. It starts and closes the embedder.

    Raises:
        RetrieverError: a document cannot be stored.
    """
    with tempfile.TemporaryDirectory(prefix="kvstitch-docs-") as folder:
        retriever = Retriever.in_folder(Path(folder), embedder, builder.chunking())
        retriever.start()
        try:
            chunks: list[Chunk] = []
            for result in retriever.ingest(list(documents)):
                if result.error is not None:
                    raise result.error
                chunks += result.chunks
            yield Collection(retriever, chunks, builder)
        finally:
            retriever.close()
