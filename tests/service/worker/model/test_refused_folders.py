"""Model folders that can never be served are refused: exit code 3 and one line that says why."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvstitch.service.errors import ModelRefused
from kvstitch.service.shared.worker_settings import WorkerSettings
from kvstitch.service.worker.model.load import lacks_memory, load, no_memory
from kvstitch.service.worker.model.supported import why_not_served
from tests import preloaded
from tests.service.worker.tiny import FAMILIES, random_model, tiny_config

START_S = 240


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    random_model(tiny_config("llama")).save_pretrained(path)
    return path


def weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def truncate(folder: Path) -> None:
    content = weights(folder).read_bytes()
    weights(folder).write_bytes(content[: len(content) // 2])


def garbage(folder: Path) -> None:
    weights(folder).write_bytes(b"\xff" * 4096)


def lose_a_tensor(folder: Path) -> None:
    tensors = load_file(weights(folder))
    del tensors["model.layers.2.self_attn.k_proj.weight"]
    save_file(tensors, weights(folder), {"format": "pt"})


def another_shape(folder: Path) -> None:
    tensors = load_file(weights(folder))
    tensors["model.layers.2.self_attn.k_proj.weight"] = torch.ones(3, 3)
    save_file(tensors, weights(folder), {"format": "pt"})


def lose_a_shard(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def bad_pickle(folder: Path) -> None:
    weights(folder).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"no pickle")


def config_cut_off(folder: Path) -> None:
    content = (folder / "config.json").read_text()
    (folder / "config.json").write_text(content[:40])


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate, "model.safetensors is damaged: "),
    "garbage": (garbage, "model.safetensors is damaged: "),
    "a tensor missing": (lose_a_tensor, "layers.2.self_attn.k_proj"),
    "another shape": (another_shape, "cannot be loaded"),
    "a shard missing": (lose_a_shard, "lacks model-00002-of-00002.safetensors"),
    "bad pickle": (bad_pickle, "cannot be loaded"),
    "config cut off": (config_cut_off, "config.json cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_folders(folder: Path, kind: str) -> None:
    damage, says = DAMAGE[kind]
    assert load(str(folder), device="cpu").layers == 5
    damage(folder)
    with pytest.raises(ModelRefused) as refused:
        load(str(folder), device="cpu")
    assert says in refused.value.message


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "unknown": ({"model_type": "of tomorrow"}, "is not served: give a model of the families"),
    "vision": ({"model_type": "qwen2_vl"}, "reads images"),
    "vision by its parts": (
        {"model_type": "of tomorrow", "vision_config": {}, "text_config": {}}, "reads images",
    ),
    "cross-attention": ({"model_type": "mllama", "vision_config": {}}, "reads images"),
    "encoder-decoder": ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
    "encoder": ({"model_type": "bert"}, "is an encoder"),
    "state": ({"model_type": "mamba2"}, "keeps a state"),
    "hybrid": ({"model_type": "x", "layer_types": ["linear_attention"]}, "keeps a state"),
    "latent": ({"model_type": "minicpm3"}, "compressed keys"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_other_models_are_refused_by_name_before_their_weights_are_read(
    tmp_path: Path, kind: str
) -> None:
    config, says = REFUSED[kind]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelRefused, match=f"model_type {config['model_type']} .*{says}"):
        load(str(tmp_path), device="cpu")


def test_no_served_family_is_refused_for_its_kind() -> None:
    for family in FAMILIES:
        assert why_not_served(tiny_config(family).to_dict()) is None


def test_the_process_ends_with_3_and_the_reason_last(folder: Path, tmp_path: Path) -> None:
    truncate(folder)
    settings = WorkerSettings(
        model=str(folder), address=f"ipc://{tmp_path}/w", kv_dir="", device="cpu"
    )
    assert "model.safetensors is damaged: " in ended(settings)


def test_a_kv_folder_that_is_a_file(folder: Path, tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    kv.write_text("somebody's")
    settings = WorkerSettings(
        model=str(folder), address=f"ipc://{tmp_path}/w", kv_dir=str(kv), device="cpu"
    )
    assert f"{kv} is not a directory" in ended(settings)


def ended(settings: WorkerSettings) -> str:
    """The last line of a worker that refuses to start."""
    process = subprocess.run(
        [*preloaded.python(), "-m", "kvstitch.service.worker"],
        input=settings.to_json().encode() + b"\n",
        capture_output=True,
        timeout=START_S,
        check=False,
    )
    assert process.returncode == 3, process.stderr.decode()
    return process.stderr.decode().strip().splitlines()[-1]


def test_a_lack_of_memory_is_no_fault_of_the_model() -> None:
    """The worker is started again, and says a sentence in place of a traceback."""
    for error in (MemoryError(), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
                  RuntimeError("you tried to allocate 8 bytes")):  # fmt: skip
        assert lacks_memory(error)
    assert not lacks_memory(OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
    assert "MiB are free" in no_memory() and "--memory-tier-mib" in no_memory()
