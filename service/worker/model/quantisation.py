"""Whether quantised weights can be served here, seen in config.json. Importable without torch.

Two kinds: checkpoints whose weights are quantised already, which a library reads and computes, and
checkpoints that are quantised when they are loaded (the setting `quantize`).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from service.worker.model.folder_checks import FolderFault

GROUP = 32
"""Columns that share a scale in int4 (`service.worker.kernels.cpu.weight`)."""


@dataclass(frozen=True)
class Method:
    """A library's way of quantising."""

    packages: tuple[tuple[str, str], ...]
    on_cpu: bool = True


_ACCELERATE = ("accelerate", "accelerate")
_GPTQMODEL = ("gptqmodel", "gptqmodel")
METHODS = {
    "torchao": Method((("torchao", "torchao"),)),
    "compressed-tensors": Method((("compressed_tensors", "compressed-tensors"),)),
    "gptq": Method((("optimum", "optimum"), _GPTQMODEL)),
    "awq": Method((_GPTQMODEL, _ACCELERATE)),
    "bitsandbytes": Method((("bitsandbytes", "bitsandbytes"), _ACCELERATE), on_cpu=False),
    "fp8": Method((_ACCELERATE,), on_cpu=False),
    "fbgemm_fp8": Method((("fbgemm_gpu", "fbgemm-gpu"), _ACCELERATE), on_cpu=False),
}
"""By `quant_method` of `quantization_config`."""

DEQUANTISED = "mxfp4"
"""Weights of this kind (gpt-oss) are dequantised when they are loaded, on every device."""


def quantisation_fault(
    folder: Path, config: dict[str, Any], *, device: str, quantize: str = "off"
) -> FolderFault | None:
    """Return what keeps a model's quantised weights from being served on "cpu", "cuda", "cuda:N"
    or "auto"; None if nothing does."""
    given = config.get("quantization_config") or config.get("compression_config")
    if quantize != "off":
        return _fault_of_setting(folder, config, quantize, quantised=bool(given))
    if not isinstance(given, dict):
        return None
    name = str(given.get("quant_method") or ("bitsandbytes" if _of_bitsandbytes(given) else None))
    if name == DEQUANTISED:
        return None
    method = METHODS.get(name)
    if method is None:
        # transformers would load such weights as if they were not quantised.
        return FolderFault(
            f"weights of {folder} are quantised by {name}, which is not served",
            f"give a checkpoint that is not quantised, or by {', '.join((*METHODS, DEQUANTISED))}",
        )
    if _has_experts(config):
        return FolderFault(
            f"weights of {folder} are quantised by {name} and it has experts, which is not served",
            "give the checkpoint that is not quantised",
        )
    on_cpu = _is_cpu(device)
    if on_cpu and not (method.on_cpu and "Float8" not in _torchao_type(given)):
        return FolderFault(
            f"weights of {folder} are quantised by {_torchao_type(given) or name}, which needs a "
            "GPU, and the device is a CPU",
            "give --device cuda, or the checkpoint that is not quantised with --quantize int8",
        )
    needed = method.packages if on_cpu else {*method.packages, _ACCELERATE}
    missing = sorted(package for module, package in needed if find_spec(module) is None)
    if missing:
        return FolderFault(
            f"weights of {folder} are quantised by {name}, which needs {' and '.join(missing)}",
            f"pip install {' '.join(missing)}",
        )
    return None


def _fault_of_setting(
    folder: Path, config: dict[str, Any], quantize: str, *, quantised: bool
) -> FolderFault | None:
    if quantised:
        return FolderFault(
            f"weights of {folder} are quantised already",
            "give --quantize off, or a checkpoint that is not",
        )
    if _has_experts(config):
        return FolderFault(
            f"{folder} has experts, which --quantize {quantize} does not reach",
            "give --quantize off",
        )
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    attended = heads * int(config.get("head_dim") or hidden // heads)
    widths = {"hidden_size": hidden, "intermediate_size": int(config["intermediate_size"])}
    widths["num_attention_heads * head_dim"] = attended
    odd = [f"{name} is {width}" for name, width in widths.items() if width % GROUP]
    if quantize == "int4" and odd:
        return FolderFault(
            f"--quantize int4 needs multiples of {GROUP}, and {odd[0]} in {folder}",
            "give --quantize int8",
        )
    return None


def _of_bitsandbytes(given: dict[str, Any]) -> bool:
    return bool(given.get("load_in_4bit") or given.get("load_in_8bit"))


def _torchao_type(given: dict[str, Any]) -> str:
    """Return the name of a torchao configuration, e.g. Int8WeightOnlyConfig; empty for others."""
    kind = given.get("quant_type")
    while isinstance(kind, dict) and "_type" not in kind:
        kind = next(iter(kind.values()), None)
    return str(kind["_type"] if isinstance(kind, dict) else kind or "")


def _has_experts(config: dict[str, Any]) -> bool:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(config.get(name) for name in names)


def _is_cpu(device: str) -> bool:
    """Return whether that is a CPU; "auto" is one where no GPU's driver is loaded."""
    if device == "auto":
        return not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/dxg"))
    return device == "cpu"
