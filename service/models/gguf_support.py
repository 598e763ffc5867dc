"""Whether a GGUF file can be served, seen in its header: before any weights are dequantised."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from service.errors import ModelRefused
from service.models.gguf_header import GgufHeader

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
    """The type that most weights are stored in."""
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
    """Whether the `gguf` package, which transformers asks, can dequantise a type."""
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
