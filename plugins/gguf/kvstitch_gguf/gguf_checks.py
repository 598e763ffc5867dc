"""Says whether a GGUF file can be served, by its header alone and without torch. What a file says
and nobody here understands is a fault: answers would be wrong without a word."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from kvstitch.service.errors import ModelRefused
from kvstitch_gguf.gguf_families import (
    KEYS,
    KNOWN_SPLITS,
    LIKE_GPT2,
    LOCAL_BASE,
    LONG_FACTORS,
    OTHER_KEYS,
    OWN_SPLITS,
    SERVED,
    SHORT_FACTORS,
    SINGLE_DIGITS,
    WINDOW_PATTERN,
    GgufFamily,
    family_of,
)
from kvstitch_gguf.gguf_file import GgufHeader, type_name
from kvstitch_gguf.gguf_hybrids import LATENT_OTHERS, LOCAL_OTHERS, OTHERS

_FOLDER = "give the model's own folder"
_TOKENIZERS = ("gpt2", "llama", "gemma4")
# RoPE has a check of its own, and a text model does without what its images need.
_LOOKED_AT_APART = ("rope.scaling.", "vision.", "mm.")
# Parts of `rope.scaling.` that are understood, by its type.
YARN = {
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
# What DeepSeek's scores are multiplied with in longer contexts.
MAGNITUDE = "rope.scaling.yarn_log_multiplier"
_SCALING = {
    "none": ("original_context_length",),
    "linear": ("factor", "original_context_length"),
    "yarn": ("factor", "original_context_length", *YARN),
    "longrope": ("original_context_length", "attn_factor"),
}


def check(header: GgufHeader) -> None:
    """Raise ModelRefused if the file cannot be served; the message says why and what to do."""
    fault = next(_faults(header), None)
    if fault is not None:
        raise ModelRefused(f"{header.path} {fault}")


def scaling_type(header: GgufHeader) -> str:
    """Return the kind of RoPE scaling; files of longrope need not name it."""
    names = {tensor.name for tensor in header.tensors}
    if {SHORT_FACTORS, LONG_FACTORS} <= names:
        return "longrope"
    # llama.cpp takes a factor for that of linear scaling where nothing else is said.
    implied = "linear" if header.get("rope.scaling.factor", 1) not in (0, 1) else "none"
    return str(header.get("rope.scaling.type", implied))


def _faults(header: GgufHeader) -> Iterator[str]:
    family = family_of(header)
    if family is None:
        yield (
            f"is of architecture {header.architecture or 'unknown'}, which is not served as a "
            f"file: give a file of {SERVED}; docs/models.md has the families that are served as "
            "folders"
        )
        return
    if (parts := header.metadata.get("split.count", 1)) > 1:
        yield (
            f"is one of {parts} parts of a model: join them with llama.cpp's `llama-gguf-split "
            "--merge`"
        )
    yield from _faults_of_types(header)
    yield from _faults_of_shape(header, family)
    yield from _faults_of_rope(header, family)
    yield from _faults_of_keys(header, family)
    yield from _faults_of_tokenizer(header)


def _faults_of_types(header: GgufHeader) -> Iterator[str]:
    kinds = {tensor.kind for tensor in header.tensors}
    if not kinds:
        yield "holds no tensors: give the file with the weights"
    unknown = next((t for t in header.tensors if not _can_be_read(t.kind)), None)
    if unknown is not None:
        names = ", ".join(type_name(kind) for kind in sorted(kinds) if not _can_be_read(kind))
        yield (
            f"holds weights in {names} ({unknown.name}), which the package gguf cannot read: give "
            "a file in Q8_0, Q6_K, Q5_K, Q4_K or F16"
        )
        return
    end = max(t.offset + _stored_bytes(t.kind, t.elements) for t in header.tensors)
    if header.data_start + end > header.bytes:
        yield (
            f"is cut off: it has {header.bytes} bytes of {header.data_start + end}; copy or "
            "download it again"
        )


def _faults_of_shape(header: GgufHeader, family: GgufFamily) -> Iterator[str]:
    needed = ("block_count", "context_length", "embedding_length", "attention.head_count")
    widths = ("attention.kv_lora_rank", "attention.key_length", "rope.dimension_count")
    for key in (*needed, *(widths if family.latent else ())):
        value = header.get(key)
        if not (isinstance(value, int) and value > 0):
            said = "another number for every layer" if isinstance(value, tuple) else value
            yield f"has no {header.architecture}.{key} that is one number ({said}): {_FOLDER}"
            return
    heads, width = header.get("attention.head_count"), header.get("embedding_length")
    head_dim = header.get("attention.key_length") or width // heads
    if family.latent:  # keys and values are what a row is compressed to
        return
    value = header.get("attention.value_length", head_dim)
    rotated = header.get("rope.dimension_count", head_dim)
    if family.local_heads:
        local = header.get("attention.key_length_swa", head_dim)
        for key in LOCAL_OTHERS:
            if (said := header.get(key, local)) != local:
                yield (
                    f"has {said} as {header.architecture}.{key} of heads of {local} dimensions, "
                    "which is not served"
                )
    if value != head_dim:
        yield f"has keys of {head_dim} and values of {value} dimensions, which is not served"
    if rotated != head_dim and not family.rotates_part:
        yield f"rotates {rotated} of {head_dim} dimensions of a head, which is not served"


def _faults_of_rope(header: GgufHeader, family: GgufFamily) -> Iterator[str]:
    kind, prefix = scaling_type(header), f"{header.architecture}.rope.scaling."
    named = ("none", "linear", "yarn", *(("longrope",) if family.rotates_part else ()))
    if kind not in named:
        yield f"has RoPE scaling of type {kind}; served are {', '.join(named)}"
        return
    if kind == "longrope" and not {SHORT_FACTORS, LONG_FACTORS} <= {t.name for t in header.tensors}:
        yield f"has RoPE scaling of type longrope and lacks {SHORT_FACTORS} or {LONG_FACTORS}"
    known = (*_SCALING[kind], "type", "finetuned")
    known += ("yarn_log_multiplier",) if family.latent else ()
    said = {key.removeprefix(prefix): v for key, v in header.metadata.items() if prefix in key}
    # Factors of 1 do nothing; without scaling the others do nothing either.
    extra = sorted(key for key, v in said.items() if key not in known and v not in (0, 1))
    if kind != "none" and extra:
        yield f"sets {', '.join(prefix + key for key in extra)}, which is not understood: {_FOLDER}"


def _faults_of_keys(header: GgufHeader, family: GgufFamily) -> Iterator[str]:
    """Keys of the architecture that nobody looks at."""
    prefix = f"{header.architecture}."
    known = {*KEYS, *OTHER_KEYS, *family.keys}
    known |= {*OTHERS} if family.hybrid else set()
    known |= {*LATENT_OTHERS} if family.latent else set()
    known |= {*LOCAL_OTHERS} if family.local_heads else set()
    known |= {WINDOW_PATTERN} if family.window_period else set()
    known |= {LOCAL_BASE} if family.ropes_by_layer else set()
    unknown = sorted(
        key
        for key, value in header.metadata.items()
        if key.startswith(prefix)
        and (part := key.removeprefix(prefix)) not in known
        and not part.startswith(_LOOKED_AT_APART)
        and not _says_nothing(part, value)
    )
    if unknown:
        yield f"sets {', '.join(unknown[:3])}, which is not understood: {_FOLDER}"

    for key, value in family.needs.items():
        if (said := header.get(key, value)) != value:
            yield f"sets {prefix}{key} to {said}, and {value} is served: {_FOLDER}"


def _says_nothing(part: str, value: Any) -> bool:
    """Return whether a key says that there is none of what it is about."""
    return bool(value) if part == "attention.causal" else value in (0, "")


def _faults_of_tokenizer(header: GgufHeader) -> Iterator[str]:
    model = header.metadata.get("tokenizer.ggml.model")
    if model not in _TOKENIZERS:
        yield f"has a tokenizer of kind {model}; {' and '.join(_TOKENIZERS)} are read: {_FOLDER}"
    split = header.metadata.get("tokenizer.ggml.pre", "default")
    if model == "gpt2" and split not in {*KNOWN_SPLITS, *SINGLE_DIGITS, *OWN_SPLITS, *LIKE_GPT2}:
        yield f"splits text in the way {split}, which is not known here: {_FOLDER}"


def _stored_bytes(kind: int, elements: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    return int(elements // block * size)


@cache
def _can_be_read(kind: int) -> bool:
    """Return whether the `gguf` package can dequantise a type."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    try:
        known = GGMLQuantizationType(kind)
        dequantize(np.zeros((1, GGML_QUANT_SIZES[known][1]), np.uint8), known)
    except (ValueError, KeyError, NotImplementedError):
        return False
    return True
