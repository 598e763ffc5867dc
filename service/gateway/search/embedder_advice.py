"""What is said of the embedder: it does not suit the documents' language, or is being changed; and
which one the first documents get, where nobody named one."""

import logging
from collections.abc import Callable, Sequence

from kvstitch.retriever import Embedder, Retriever
from kvstitch.retriever.analysis.languages import ENGLISH, surely

DEFAULT, MULTILINGUAL = "all-MiniLM-L6-v2", "multilingual-e5-small"
ENGLISH_ONLY = (DEFAULT,)
KNOWN = ("", "un", ENGLISH)  # or the language is not sure
FOREIGN_FROM = 0.25  # share of the newest documents, from which another embedder should be chosen
NEWEST, LEAST = 64, 5  # documents that are looked at; fewer say little
HOW = (
    f"run `kvstitch model fetch {MULTILINGUAL}`, and start with KVSTITCH_EMBEDDER=$(kvstitch "
    f"model path {MULTILINGUAL}): what is stored is embedded anew in the background"
)
logger = logging.getLogger(__name__)


class EmbedderAdvice:
    """Looks at what a retriever holds. Its methods block."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._told = False
        self._chosen = ""
        # Starts one that was fetched for many languages, if any; None: it is too late for it.
        self.multilingual: Callable[[], Embedder | None] | None = None

    def choose(self, texts: Sequence[str]) -> None:
        """Have an embedder that was fetched for it answer from the first documents on, if so many
        of them are not in English. Later ones change nothing."""
        if self.multilingual is None:
            return
        if self._retriever.catalog.spaces():
            self.multilingual = None
            return
        share = sum(surely(text) not in KNOWN for text in texts) / max(1, len(texts))
        if share < FOREIGN_FROM or (found := self.multilingual()) is None:
            return
        if self._retriever.take(found):
            self._chosen = (
                f"{share:.0%} of the first documents are not in English, so {found.name}, which "
                "was fetched, embeds all; KVSTITCH_EMBEDDER names another"
            )
            logger.warning(self._chosen)

    def sentences(self) -> list[str]:
        """Return what somebody should know; nothing, mostly."""
        found = [said for said in (self._chosen, self._of_languages()) if said]
        if (renewal := self._retriever.renewal) is not None:
            done, chunks = renewal.progress()
            failed = f"; the last try failed: {renewal.failure}" if renewal.failure else ""
            found.append(
                f"{done} of {chunks} chunks are embedded by {renewal.embedder.name}; until all "
                f"are, {self._retriever.embedder.name} answers{failed}"
            )
        return found

    def warnings(self, texts: Sequence[str]) -> list[str]:
        """Return what is to be said of documents to whoever has stored them, which tells nothing of
        others'; once there are many, it is logged."""
        if not self._is_english_only():
            return [""] * len(texts)
        foreign = [surely(text) not in KNOWN for text in texts]
        if any(foreign) and not self._told and (said := self._of_languages()):
            self._told = True
            logger.warning(said)
        name = self._retriever.embedder.name
        own = f"it is not in English, which is all that the embedder {name} was trained for: {HOW}"
        return [own if each else "" for each in foreign]

    def _is_english_only(self) -> bool:
        return self._retriever.embedder.name in ENGLISH_ONLY and self._retriever.renewal is None

    def _of_languages(self) -> str:
        if not self._is_english_only():
            return ""
        retriever, name = self._retriever, self._retriever.embedder.name
        found = [surely(text) not in KNOWN for text in retriever.catalog.newest_texts(NEWEST)]
        if (share := sum(found) / max(LEAST, len(found))) < FOREIGN_FROM:
            return ""
        return (
            f"{share:.0%} of the newest documents are not in English, which is all that the "
            f"embedder {name} was trained for: {HOW}"
        )
