"""Loads a Hugging Face model folder: weights, dtype, device."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

from kvstitch.kvstore.format.chunk_identity import DTYPES
from kvstitch.service.errors import ModelRefused
from kvstitch.service.shared.lean_import import lean_import
from kvstitch.service.shared.resources import free_memory
from kvstitch.service.worker.kernels.cpu import native
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for, family_decoder
from kvstitch.service.worker.model.folder_checks import (
    DEQUANTISED,
    config_fault,
    left_out,
    quantisation_fault,
    read_config,
    weights_fault,
)
from kvstitch.service.worker.model.kept_weights import quantise_once
from kvstitch.service.worker.model.projection import compute_in_fp32, quantise

log = logging.getLogger("kvstitch.worker")


def load(
    folder: str, *, dtype: str = "auto", device: str = "auto", quantize: str = "off"
) -> DecoderModel:
    """Load the model in `folder` for inference.

    Args:
        dtype: "float32", "float16", "bfloat16", or "auto" for the checkpoint's own where the
            device is good at it.
        device: a torch device, or "auto" for CUDA where there is a GPU.
        quantize: "int8" or "int4" for weights rounded to so many bits, or "off".

    Raises:
        ModelRefused: the model cannot be served; the message says what to do.
    """
    path = Path(folder)
    if not (path / "config.json").exists():
        raise ModelRefused(
            f"{folder} holds no config.json: give a Hugging Face model folder", field="model"
        )
    place = torch.device(_device(device))
    quantised = _check_folder(path, place, quantize)
    if left := left_out(path):
        log.warning("%s", left)
    try:
        # The libraries that compute quantised weights may need all of torch.
        with nullcontext() if quantised else lean_import():
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            numbers = _dtype(dtype, config, place)
            narrow = place.type == "cpu" and _stays_narrow(path, config, numbers)
            config, renamed = _text_alone(config)
            model, loaded = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                key_mapping=renamed,
                dtype=torch.bfloat16 if narrow else numbers,
                local_files_only=True,
                # Only the start-up check asks the model itself. Every family has this one.
                attn_implementation="eager",
                output_loading_info=True,
                # What a library has packed for a device must be loaded there.
                device_map={"": place} if quantised and place.type != "cpu" else None,
                **_dequantised(config),
            )
    except Exception as error:
        if lacks_memory(error):
            raise
        raise ModelRefused(f"{folder} cannot be loaded: {error}", field="model") from error
    if missing := sorted(loaded["missing_keys"]):
        # transformers would fill them with random numbers, and every answer would be wrong.
        raise ModelRefused(
            f"the weights of {folder} lack {', '.join(missing[:3])}: copy the model folder again",
            field="model",
        )
    model = model.eval().requires_grad_(False)
    _attend_precisely(model)
    if quantised:
        _try(model, folder)
    else:
        model = model.to(place)
    if quantize != "off":
        quantise_once(model, path, quantize)
    elif narrow:
        quantise(model, 16)
    if narrow:
        compute_in_fp32(model)
    return decoder_for(model)


def _attend_precisely(model: Any) -> None:
    """Let the model itself, which only the start-up check asks, round as little as it can."""
    text = model.config.get_text_config()
    if model._supports_sdpa and not getattr(text, "attn_logit_softcapping", None):
        model.set_attn_implementation("sdpa")


def _check_folder(path: Path, device: torch.device, quantize: str) -> bool:
    """Refuse what cannot be served before any weights are read."""
    try:
        config = read_config(path)
    except (OSError, ValueError) as error:
        raise ModelRefused(
            f"config.json cannot be read: {error}: copy the model folder again", field="model"
        ) from error
    fault = config_fault(path, config, device=device.type, quantize=quantize)
    if fault := fault or weights_fault(path):
        raise ModelRefused(f"{fault.problem}: {fault.remedy}", field="model")
    given = config.get("quantization_config") or config.get("compression_config") or {}
    return bool(given) and given.get("quant_method") != DEQUANTISED


@torch.inference_mode()
def _try(model: Any, folder: str) -> None:
    """Compute one token by a library's quantised modules, which may not run on every device."""
    try:
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
    except Exception as error:
        if lacks_memory(error):
            raise
        raise ModelRefused(
            f"the quantised weights of {folder} cannot be computed on {model.device}: {error}",
            field="model",
        ) from error


def _dequantised(config: Any) -> dict[str, Any]:
    """Return arguments by which transformers dequantises MXFP4 weights (gpt-oss) on loading."""
    quantisation = getattr(config, "quantization_config", None) or {}
    if quantisation.get("quant_method") != DEQUANTISED:
        return {}
    return {"quantization_config": Mxfp4Config(dequantize=True)}


def _text_alone(config: Any) -> tuple[Any, dict[str, str] | None]:
    """Return the configuration of what is served, and what its weights' names become where
    transformers would load the whole model: patterns, and what stands in their place."""
    if config.model_type not in ("gemma3", "gemma4"):
        return config, None
    text = config.get_text_config()
    if (quantisation := getattr(config, "quantization_config", None)) is not None:
        text.quantization_config = quantisation
    head, layers = r"^language_model\.lm_head", r"^(model\.)?language_model\.(model\.)?"
    return text, {head: "lm_head", layers: "model."}


def lacks_memory(error: Exception) -> bool:
    """Return whether loading may succeed later: there was not enough memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error)


def no_memory() -> str:
    """Return what is to be said where memory is lacking."""
    return (
        f"there is too little memory for the model and its KV pool ({(free_memory() or 0) >> 20:,} "
        "MiB are free): take a smaller model or --quantize int8, lower KVSTITCH_POOL_TOKENS or "
        "--memory-tier-mib, or end other programs"
    )


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelRefused(
            "device cuda was asked for, but torch finds no CUDA device: use --device cpu",
            field="device",
        )
    return name


def _dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    if name != "auto":
        if name not in DTYPES:
            raise ModelRefused(
                f"dtype must be auto, float32, float16 or bfloat16, not {name!r}", field="dtype"
            )
        return DTYPES[name]
    own: torch.dtype = getattr(config, "dtype", None) or torch.float32
    if (
        device.type == "cpu"
        and own != torch.float32
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        return torch.float32
    return torch.bfloat16 if device.type == "cpu" and own == torch.float16 else own


def _stays_narrow(path: Path, config: Any, numbers: torch.dtype) -> bool:
    """Return whether linear modules keep the bfloat16 of the checkpoint where all else is computed
    in fp32: the same numbers, in half of the memory, where a kernel reads them."""
    return (
        numbers == torch.float32
        and getattr(config, "dtype", None) == torch.bfloat16
        and native.has_avx2_alone()
        and family_decoder(str(config.model_type)).has_plain_layers
        and not quantisation_fault(path, read_config(path), device="cpu", quantize="int8")
    )


def default_pool_tokens(decoder: DecoderModel, max_running: int, workers: int = 1) -> int:
    """Return KV pool size in tokens when none is set: a quarter of the free memory (half of a
    GPU's), divided by the workers of the service, and at most what `max_running` sequences of
    full length can use."""
    if decoder.device.type == "cuda":
        free = torch.cuda.mem_get_info(decoder.device)[0] // 2
    else:
        free = (free_memory() or 0) // 4
    most = max_running * decoder.max_context
    return max(1024, min(most, free // workers // decoder.kv_bytes_per_token))


def set_threads(threads: int) -> None:
    """Set the number of intra-op threads of this process; 0 leaves torch's default."""
    if threads:
        torch.set_num_threads(threads)
