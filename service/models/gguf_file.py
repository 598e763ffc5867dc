"""Reads the header of a GGUF file, and says whether the file can be served.

    "GGUF" | version | counts | metadata: key, type, value … | tensors: name, shape, type, offset …
    … padding | data

It reads no weights, and of the metadata no arrays (a vocabulary has 150,000 strings), so it takes
a fraction of a second where the `gguf` package's own reader takes several. A file may come from
anywhere: every length is checked against the file's size before it is believed.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from service.errors import ModelRefused

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
# Type of a metadata value → how struct reads it.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file.

    Attributes:
        name: Llama.cpp's name.
        shape: In numpy's order, the fastest dimension last.
        kind: Ggml's number of the type that it is stored in.
        offset: From the beginning of the data.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself.

    Attributes:
        path: The file.
        bytes: Its size.
        data_start: Where the tensors' data begins.
        metadata: Keys and scalar values; an array is None.
        tensors: In the file's order.
    """

    path: Path
    bytes: int
    data_start: int
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of this architecture, e.g. "rope.freq_base"."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        ModelRefused: It cannot be read, is no GGUF file, or its header is damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except (OSError, ValueError, struct.error) as error:  # ValueError: empty, or not UTF-8
        raise ModelRefused(f"{path} cannot be read as a GGUF file: {error}") from error


def _parse(path: Path, data: mmap.mmap) -> GgufHeader:
    if data[:4] != MAGIC:
        raise ValueError("it does not begin with GGUF")
    cursor = _Cursor(data)
    version, tensors, pairs = cursor.unpack("IQQ")
    if version not in VERSIONS:
        raise ValueError(
            f"it has version {version}, and {' and '.join(map(str, VERSIONS))} are read"
        )
    metadata = {}
    for _ in range(pairs):
        key = cursor.string()
        metadata[key] = cursor.value()
    found = tuple(cursor.tensor() for _ in range(tensors))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment}")
    start = -(-cursor.at // alignment) * alignment
    return GgufHeader(path, len(data), start, metadata, found)


class _Cursor:
    """Reads values one after another; struct.error behind the end of the data."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = len(MAGIC)

    def unpack(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        values = struct.unpack_from(layout, self._data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def skip(self, size: int) -> None:
        if size > len(self._data) - self.at:
            raise ValueError(f"a length at byte {self.at} goes beyond the end of the file")
        self.at += size

    def string(self) -> str:
        (length,) = self.unpack("Q")
        begin = self.at
        self.skip(length)
        return self._data[begin : self.at].decode("utf-8")

    def value(self) -> Any:
        """Return the next metadata value with its type; None for an array, which is skipped."""
        (kind,) = self.unpack("I")
        if kind in _SCALARS:
            return self.unpack(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"a metadata value has the unknown type {kind}")
        kind, count = self.unpack("IQ")
        if kind in _SCALARS:
            self.skip(count * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING:
            for _ in range(count):
                self.skip(self.unpack("Q")[0])
        else:
            raise ValueError(f"a metadata array has the unknown type {kind}")
        return None

    def tensor(self) -> GgufTensor:
        name = self.string()
        (dimensions,) = self.unpack("I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions")
        *shape, kind, offset = self.unpack(f"{dimensions}QIQ")
        return GgufTensor(name, tuple(reversed(shape)), kind, offset)


# llama.cpp writes Mistral's models as llama: without a sliding window they are the same.
ARCHITECTURES = {"llama": "Llama, Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
# Factors of llama3's RoPE; they become a part of config.json, not of the weights.
ROPE_FACTORS = "rope_freqs.weight"
_ROPE_SCALING = ("none", "linear", "yarn")
_ROPE_KEYS = ("type", "factor", "original_context_length", "finetuned")


def check(header: GgufHeader) -> None:
    """Raise ModelRefused if the file cannot be served; the message says why and what to do."""
    fault = next(_faults(header), None)
    if fault is not None:
        raise ModelRefused(f"{header.path} {fault}")


def type_name(kind: int) -> str:
    """ggml's name of a type, e.g. Q4_K."""
    from gguf import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(kind).name)
    except ValueError:
        return f"type {kind}"


def quantisation(header: GgufHeader) -> str:
    """Return the type that most weights are stored in."""
    elements: dict[int, int] = {}
    for tensor in header.tensors:
        elements[tensor.kind] = elements.get(tensor.kind, 0) + tensor.elements
    return type_name(max(elements, key=lambda kind: elements[kind]))


def _faults(header: GgufHeader) -> Iterator[str]:
    served = ", ".join(f"{name} ({whose})" for name, whose in ARCHITECTURES.items())
    if header.architecture not in ARCHITECTURES:
        yield (
            f"is of architecture {header.architecture or 'unknown'}, which is not served: give a "
            f"file of {served}"
        )
        return
    if header.get("expert_count"):
        yield "is a mixture of experts, which is not served: give a dense model"
    yield from _faults_of_types(header)
    yield from _faults_of_shape(header)
    yield from _faults_of_rope(header)


def _faults_of_types(header: GgufHeader) -> Iterator[str]:
    kinds = {tensor.kind for tensor in header.tensors}
    if not kinds:
        yield "holds no tensors: give the file with the weights"
    if unknown := sorted(kind for kind in kinds if not _can_be_read(kind)):
        names = ", ".join(map(type_name, unknown))
        yield (
            f"holds weights in {names}, which transformers cannot read: give a file in Q8_0, Q6_K, "
            "Q5_K, Q4_K or F16"
        )
        return
    end = max(t.offset + _stored_bytes(t.kind, t.elements) for t in header.tensors)
    if header.data_start + end > header.bytes:
        yield (
            f"is cut off: it has {header.bytes} bytes of {header.data_start + end}; copy or "
            "download it again"
        )


def _faults_of_shape(header: GgufHeader) -> Iterator[str]:
    """What transformers' loader would pass over, so that answers would be wrong."""
    heads, width = header.get("attention.head_count"), header.get("embedding_length")
    if not (isinstance(heads, int) and isinstance(width, int) and heads):
        yield "does not say how many attention heads it has, or has another number in every layer"
        return
    key, value = header.get("attention.key_length"), header.get("attention.value_length")
    head_dim = key or width // heads
    rotated = header.get("rope.dimension_count", head_dim)
    if value not in (None, head_dim) or rotated != head_dim:
        yield "has keys and values of different sizes, or rotates a part of them: it is not served"


def _faults_of_rope(header: GgufHeader) -> Iterator[str]:
    kind = header.get("rope.scaling.type", "none")
    if kind not in _ROPE_SCALING:
        yield f"has RoPE scaling of type {kind}; served are {', '.join(_ROPE_SCALING)}"
    prefix = f"{header.architecture}.rope.scaling."
    extra = sorted(
        key
        for key in header.metadata
        if key.startswith(prefix) and key.removeprefix(prefix) not in _ROPE_KEYS
    )
    if kind != "none" and extra:
        yield f"sets {', '.join(extra)}, which is not understood: give the model's own folder"


def _stored_bytes(kind: int, elements: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    return int(elements // block * size)


@cache
def _can_be_read(kind: int) -> bool:
    """Return whether the `gguf` package, which transformers asks, can dequantise a type."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    try:
        known = GGMLQuantizationType(kind)
        plain = {"F32": np.float32, "F16": np.float16}.get(known.name)
        block = np.zeros((1, GGML_QUANT_SIZES[known][1]), np.uint8)
        dequantize(block if plain is None else block.view(plain), known)
    except (ValueError, KeyError, NotImplementedError):
        return False
    return True
