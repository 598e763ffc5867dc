"""The protocol of embedders, what all of them need, and a model behind OpenAI's HTTP API.

text-embeddings-inference, vLLM, Ollama and others offer /v1/embeddings. A process that uses it
needs no torch.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import httpx
import numpy as np
import numpy.typing as npt

from kvstitch.retriever.errors import EmbedderError, EmbedderNotStarted, EmbedderUnsupported

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Vectors = npt.NDArray[np.float32]
CountedVectors = tuple[Vectors, int]
"""Vectors, and how many tokens the model read for them; 0 where an endpoint does not say."""


class Prompts(NamedTuple):
    """What a model was trained to see before a question, and before a text that may answer it."""

    query: str = ""
    document: str = ""


class Embedder(Protocol):
    """Turns texts into vectors; thread-safe between `start` and `close`."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> str:
        """Hash of everything that decides a vector. May need `start`."""
        ...

    @property
    def dim(self) -> int:
        """Dimensions of a vector. May need `start`."""
        ...

    @property
    def prompts(self) -> Prompts:
        """Put them before what is embedded; `embed` does not. May need `start`."""
        ...

    def start(self) -> None:
        """Load what `embed` needs. Calling it again changes nothing."""
        ...

    def close(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        """Return float32 `[len(texts), dim]`, each row of length 1, and how many tokens the model
        read; raises EmbedderError."""


@dataclass(frozen=True)
class EmbeddingSpace:
    """The identity of an embedder; vectors are comparable only within one space."""

    name: str
    revision: str
    dim: int

    def __str__(self) -> str:
        return f"{self.name}@{self.revision[:12]} ({self.dim} dimensions)"


FindEmbedder = Callable[[EmbeddingSpace], Embedder | None]
"""Starts the embedder of a space; None: there is none here."""


def space_of(embedder: Embedder) -> EmbeddingSpace:
    """The space of a started embedder."""
    return EmbeddingSpace(embedder.name, embedder.revision, embedder.dim)


def keep_no_words(tokenizer: Tokenizer) -> None:
    """Have a tokenizer keep no words that it met: of a hostile document they take 80 MB a
    thread."""
    if hasattr(tokenizer.model, "_resize_cache"):
        tokenizer.model._resize_cache(0)


# text-embeddings-inference refuses larger batches by default.
_BATCH = 32
TIMEOUT_S = 30.0
_PAUSES_S = (0.25, 1.0)  # seconds before the second and the third try
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_SHOWN_CHARS = 200


class EndpointEmbedder:
    prompts = Prompts()  # those of a model behind it are its server's

    def __init__(
        self,
        url: str,
        model: str,
        *,
        revision: str = "",
        api_key: str | None = None,
    ) -> None:
        self.name = model
        self.revision = hashlib.sha256(f"endpoint:{model}:{revision}".encode()).hexdigest()
        self._url = f"{url.rstrip('/')}/embeddings"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._starting = threading.Lock()
        self._http: httpx.Client | None = None
        self._dim = 0

    @property
    def dim(self) -> int:
        if not self._dim:
            raise EmbedderNotStarted("call start() before the embedder is used")
        return self._dim

    def start(self) -> None:
        """Send one request to learn the size of the vectors."""
        with self._starting:
            if self._http is not None:
                return
            self._http = httpx.Client(headers=self._headers, timeout=TIMEOUT_S)
            try:
                self._dim = self._batch(["dimension"])[0].shape[1]
            except BaseException:
                self._http.close()
                self._http = None
                raise

    def close(self) -> None:
        with self._starting:
            if self._http is not None:
                self._http.close()
                self._http = None

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        tokens = 0
        for start in range(0, len(texts), _BATCH):
            batch, count = self._batch(texts[start : start + _BATCH])
            dim = batch.shape[1]
            if dim != self.dim:
                raise EmbedderError(
                    f"{self._url} gave vectors of {dim} dimensions, {self.dim} before"
                )
            vectors[start : start + len(batch)] = batch
            tokens += count
        return vectors, tokens

    def _batch(self, texts: Sequence[str]) -> CountedVectors:
        """Embed one batch; the vectors have as many dimensions as the model gives."""
        answer = self._ask({"model": self.name, "input": list(texts), "encoding_format": "float"})
        try:
            rows = sorted(answer["data"], key=lambda row: int(row["index"]))
            if [int(row["index"]) for row in rows] != list(range(len(texts))):
                raise ValueError(f"{len(texts)} texts were sent, {len(rows)} rows came back")
            vectors = np.array([row["embedding"] for row in rows], dtype=np.float32)
            norms: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
            if not (np.isfinite(norms).all() and (norms > 0).all()):
                raise ValueError("a vector is zero or not finite")
        except (ValueError, LookupError, TypeError) as error:
            raise EmbedderError(f"the answer of {self._url} cannot be read: {error}") from error
        return vectors / norms, _tokens(answer)

    def _ask(self, body: dict[str, Any]) -> Any:
        """Send one POST; repeat it after faults that may pass."""
        for pause_s in (*_PAUSES_S, None):
            try:
                reply = self._require().post(self._url, json=body)
                if reply.status_code == 200:
                    return reply.json()
                fault = f"HTTP {reply.status_code}: {reply.text[:_SHOWN_CHARS]}"
                again = reply.status_code in _RETRIED
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise EmbedderUnsupported(f"{self._url} is no URL to ask: {error}") from error
            except httpx.HTTPError as error:
                fault, again = f"{type(error).__name__}: {error}", True
            except ValueError as error:
                raise EmbedderError(f"{self._url} answered no JSON: {error}") from error
            if pause_s is None or not again:
                break
            time.sleep(pause_s)
        raise EmbedderError(f"{self._url} does not embed: {fault}")

    def _require(self) -> httpx.Client:
        if self._http is None:
            raise EmbedderNotStarted("call start() before the embedder is used")
        return self._http


def _tokens(answer: Any) -> int:
    """What the answer's `usage` says; endpoints may leave it out."""
    try:
        return int(answer["usage"]["prompt_tokens"])
    except (LookupError, TypeError, ValueError):
        return 0
