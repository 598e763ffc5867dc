"""Gives large scopes an approximate vector index, beside searches and changes."""

from __future__ import annotations

import logging
import threading

from retriever import Retriever
from retriever.errors import RetrieverError

logger = logging.getLogger(__name__)


class IndexKeeper:
    """One thread at a time, only while an index does not suit its scope's size."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begins to rebuild indexes if some are overdue. Does not block; one caller at a time."""
        if self._thread is not None and self._thread.is_alive():
            return
        if not self._closing.is_set() and self._retriever.overdue_indexes():
            self._thread = threading.Thread(target=self._rebuild, name="index", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Gives up what is under way: the next start begins again.

        Blocks until the step under way is done: some seconds with a million vectors.
        """
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _rebuild(self) -> None:
        try:
            if self._retriever.rebuild_indexes(self._closing.is_set):
                self._retriever.save()
        except (RetrieverError, OSError, MemoryError) as error:
            # The old index is searched further. The next change of documents tries again.
            logger.warning("the vector index was not rebuilt: %s", error)
