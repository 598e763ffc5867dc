"""A sentence-embedding model that runs in this process with transformers.

`start` imports torch and transformers, so a process that embeds elsewhere needs neither. The
default model is all-MiniLM-L6-v2; any folder in the layout of sentence-transformers can be used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvstitch.retriever.embedders import CountedVectors, Prompts, Vectors, keep_no_words
from kvstitch.retriever.embedders.sentence_model_folder import SentenceModelFolder
from kvstitch.retriever.errors import EmbedderError, EmbedderNotStarted

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

# Most tokens of one forward pass, padding included. Larger ones are slower: 8,192 take a third more
# time per token, because what the layers hand on does not fit into the CPU's caches.
_BATCH_TOKENS = 2048
# Rows are padded to a multiple of so many tokens, and a batch has a power of two of them; for a
# single short text, mostly a question, see short_text.py. For every shape that is new the libraries
# below make programs of their own, which take time and are kept: hundreds of shapes took 160 MB.
_STEP = 32
_SHORT_CHARS = 1000


class LocalEmbedder:
    """Pools the last hidden states over the attention mask and scales them to length 1."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        importing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`importing`: in what transformers is imported, which may leave out parts of it."""
        self._path = None if path is None else Path(path)
        self._dtype = dtype
        self._importing = importing
        self._loading = threading.Lock()
        self._loaded: _Loaded | None = None

    @property
    def name(self) -> str:
        return self._require().folder.name

    @property
    def revision(self) -> str:
        return self._require().revision

    @property
    def dim(self) -> int:
        return self._require().dim

    @property
    def prompts(self) -> Prompts:
        return self._require().folder.prompts

    def start(self) -> None:
        """Load the model on the CPU."""
        with self._loading:
            if self._loaded is not None:
                return
            with self._importing():
                self._loaded = _Loaded(SentenceModelFolder.read(self._path), _dtype(self._dtype))

    def close(self) -> None:
        with self._loading:
            self._loaded = None

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        loaded = self._require()
        if not texts:
            return np.zeros((0, loaded.dim), dtype=np.float32), 0
        try:
            if len(texts) == 1 and len(texts[0]) <= _SHORT_CHARS:
                whole = [loaded.tokenizer.encode(texts[0])]
            else:  # by threads, and without Python's lock
                whole = loaded.tokenizer.encode_batch(list(texts))
            windows = [[encoded.ids, *(w.ids for w in encoded.overflowing)] for encoded in whole]
            return loaded.embed(windows), sum(len(ids) for of_text in windows for ids in of_text)
        except Exception as error:
            raise EmbedderError(f"embedding {len(texts)} texts failed: {error}") from error

    def _require(self) -> _Loaded:
        if (loaded := self._loaded) is None:
            raise EmbedderNotStarted("call start() before the embedder is used")
        return loaded


class _Loaded:
    def __init__(self, folder: SentenceModelFolder, dtype: torch.dtype) -> None:
        from transformers import AutoModel, AutoTokenizer

        from kvstitch.retriever.embedders.short_text import ShortTextBert

        self.folder = folder
        self.revision = folder.revision()
        loaded: Any = AutoTokenizer.from_pretrained(folder.path, local_files_only=True)
        self.padding = loaded.pad_token_id or 0
        # What transformers puts around it takes longer than a question's tokens do, and sets its
        # truncation anew at every call.
        self.tokenizer: Tokenizer = loaded.backend_tokenizer
        keep_no_words(self.tokenizer)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(folder.max_tokens, direction=loaded.truncation_side)
        self.model: Any = AutoModel.from_pretrained(
            folder.path, local_files_only=True, dtype=dtype
        ).eval()
        self.dim = int(self.model.config.hidden_size)
        known = ShortTextBert.supports(self.model)
        self.short = ShortTextBert(self.model) if known else None

    def embed(self, windows: list[list[list[int]]]) -> Vectors:
        """Embed texts, each as the token ids of its windows: `[len(windows), dim]`. Windows of
        similar length share a batch."""
        rows = [ids for of_text in windows for ids in of_text]
        owners = [owner for owner, of_text in enumerate(windows) for _ in of_text]
        sums = np.zeros((len(windows), self.dim), dtype=np.float32)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        for batch in self._batches(order, rows):
            pooled = self._forward([rows[row] for row in batch])
            for row, vector in zip(batch, pooled, strict=True):
                sums[owners[row]] += vector * len(rows[row])
        norms: Vectors = np.linalg.norm(sums, axis=1, keepdims=True)
        return sums / norms

    def _batches(self, order: list[int], rows: list[list[int]]) -> list[list[int]]:
        """Split `order`, which is sorted by length, so a batch's last row sets the padded size."""
        full: list[list[int]] = []
        for row in order:
            padded = self._padded(len(rows[row]))
            if not full or padded * (len(full[-1]) + 1) > _BATCH_TOKENS:
                full.append([])
            full[-1].append(row)
        batches = []
        for batch in full:
            while batch:
                size = 1 << (len(batch).bit_length() - 1)
                batches.append(batch[:size])
                batch = batch[size:]
        return batches

    def _padded(self, tokens: int) -> int:
        return min(-(-tokens // _STEP) * _STEP, self.folder.max_tokens)

    def _forward(self, rows: list[list[int]]) -> Vectors:
        """Embed one batch: `[len(rows), dim]`, each row of length 1."""
        import torch

        from kvstitch.retriever.embedders.short_text import MAX_TOKENS

        longest = max(len(row) for row in rows)
        is_short = len(rows) == 1 and longest <= MAX_TOKENS
        with torch.inference_mode():
            if self.short is not None and is_short:
                states, mask = self.short.states(torch.tensor(rows[0]))[None], None
            else:
                longest = longest if is_short else self._padded(longest)
                ids = torch.tensor([row + [self.padding] * (longest - len(row)) for row in rows])
                lengths = torch.tensor([len(row) for row in rows])
                mask = (torch.arange(longest)[None, :] < lengths[:, None]).long()
                states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            pooled = _pool(states.float(), mask, self.folder.pooling)
            normalised = torch.nn.functional.normalize(pooled, dim=-1)
        array: Vectors = normalised.numpy()
        return array


def _dtype(name: str) -> torch.dtype:
    import torch

    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    in_hardware = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if in_hardware else torch.float32


def _pool(states: torch.Tensor, mask: torch.Tensor | None, pooling: str) -> torch.Tensor:
    """Pool states `[rows, tokens, dim]` over mask `[rows, tokens]` into `[rows, dim]`. Without a
    mask all tokens count."""
    if pooling == "cls":
        return states[:, 0]
    if mask is None:
        return states.amax(dim=1) if pooling == "max" else states.sum(dim=1) / states.shape[1]
    kept = mask.unsqueeze(-1)
    if pooling == "max":
        return states.masked_fill(kept == 0, float("-inf")).amax(dim=1)
    return (states * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)
