"""Sharded files: what is written is read back, below the limit; both sizes end as model folders."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import demo
from demo.training.checkpoint import read_checkpoint, write_checkpoint
from demo.training.decoder import Decoder
from demo.training.export import export
from demo.training.load import load_plain
from demo.training.plan import LARGE, SIZES
from demo.training.shards import LIMIT, read_shards, write_shards
from demo.training.train import main

TREE_LIMIT = 32 * 2**20
"""Weights of all sizes together in the tree, in bf16."""


def _tensors(count: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"t{i}": torch.randn(10, 10, generator=generator) for i in range(count)}


def test_shards_are_read_back_and_below_the_limit(tmp_path: Path) -> None:
    tensors = _tensors(7)
    write_shards(tensors, tmp_path, limit=900)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 4
    found = read_shards(tmp_path)
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_few_tensors_are_one_file_in_place_of_many(tmp_path: Path) -> None:
    write_shards(_tensors(7), tmp_path, limit=900)
    write_shards(_tensors(2), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert set(read_shards(tmp_path)) == {"t0", "t1"}


def test_a_tensor_above_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="t0 has 400 bytes"):
        write_shards(_tensors(1), tmp_path, limit=399)


def test_an_interrupted_write_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert read_checkpoint(folder) is None
    write_checkpoint(folder, _tensors(1), {"step": 1})
    write_checkpoint(folder, _tensors(2), {"step": 2})
    folder.rename(folder.with_suffix(".old"))  # died between the two renames
    found = read_checkpoint(folder)
    assert found is not None
    assert found[1] == {"step": 2}
    write_checkpoint(folder, _tensors(3), {"step": 3})
    found = read_checkpoint(folder)
    assert found is not None
    assert len(found[0]) == 3
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_weights_of_both_sizes_fit_the_tree() -> None:
    sizes = [sum(p.numel() for p in Decoder(plan.model).parameters()) for plan in SIZES.values()]
    assert 10e6 < sizes[1] < 16e6
    assert 2 * sum(sizes) < TREE_LIMIT


def test_the_large_model_is_exported_in_shards_that_load(tmp_path: Path) -> None:
    from service.worker.model.load import load

    model = Decoder(LARGE.model, seed=5)
    export(model, dict(model.named_parameters()), tmp_path)
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) == 2
    assert all(file.stat().st_size < 16 * 2**20 for file in files)
    plain = load_plain(tmp_path)
    assert plain.config == LARGE.model
    ids = torch.arange(300, 340)[None]
    mask = torch.full((40, 40), -1e9).triu(1)[None, None]
    with torch.no_grad():
        ours = plain.logits(plain(ids, torch.arange(40)[None], mask))
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        assert torch.allclose(ours, theirs(ids).logits, atol=1e-3)
    assert load(str(tmp_path), dtype="float32", device="cpu").config.num_hidden_layers == 14


@pytest.mark.slow
def test_large_trains_in_slices_from_nothing(tmp_path: Path) -> None:
    def train(name: str, *more: str) -> int:
        out = tmp_path / name
        shared = "--size large --device cpu --bf16 --batch-tokens 250 --longest 200 --steps 2"
        where = f"--checkpoint {out}/run --log {out}/log.jsonl --out {out}/model"
        return main([*f"{shared} --evaluate-every 0 {where}".split(), *more])

    assert train("sliced", "--slice-minutes", "0.0001") == 3
    assert train("sliced") == 0
    assert train("whole") == 0
    sliced, whole = (read_shards(tmp_path / name / "model") for name in ("sliced", "whole"))
    assert all(torch.equal(sliced[name], whole[name]) for name in whole)
    checkpoint = tmp_path / "sliced" / "run"
    assert json.loads((checkpoint / "numbers.json").read_text())["step"] == 2
    shards = list(checkpoint.glob("*.safetensors"))
    assert len(shards) > 4
    assert all(shard.stat().st_size <= LIMIT + 2**20 for shard in shards)


@pytest.mark.slow
def test_the_script_trains_and_keeps_small_files(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    flags = "--device cpu --batch-tokens 500 --longest 300 --steps 1 --evaluate-every 0"
    env = os.environ | {
        "PYTHON": sys.executable,
        "TRAINING": str(tmp_path),
        "TRAIN_FLAGS": flags,
        "OUT": str(kept),
    }
    script = Path(demo.__file__).parent / "training" / "train_h200.sh"
    ran = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "trained"
    files = list(kept.iterdir())
    assert len(files) <= 8
    assert all(file.stat().st_size < 16 * 2**20 for file in files)
    with tarfile.open(kept / "large_model.tgz") as archive:
        archive.extractall(kept)  # our own; filters came with Python 3.11.4
    assert load_plain(kept).config == LARGE.model
