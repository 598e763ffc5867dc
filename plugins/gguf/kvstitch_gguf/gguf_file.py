"""Reads the header of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), in a
fraction of a second where the `gguf` package's own reader takes several: no weights, and no long
arrays. A file may come from anywhere: every length is checked against the file's size."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from kvstitch.service.errors import ModelRefused

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
# Type of a metadata value → how struct reads it.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_MAX_DIMENSIONS = 4
_MAX_LAYERS = 1024  # longer arrays are not about layers


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself."""

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
        """Return the next metadata value with its type; None for an array that is skipped."""
        (kind,) = self.unpack("I")
        if kind in _SCALARS:
            return self.unpack(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"a metadata value has the unknown type {kind}")
        kind, count = self.unpack("IQ")
        if kind in _SCALARS and count <= _MAX_LAYERS:
            return self.unpack(_SCALARS[kind] * count)
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
