"""`serve` on a model that can never be served ends at once with exit code 3, and says doctor's
sentence; nothing is restarted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests import preloaded

WAIT_S = 300  # two processes load torch on what may be one busy core


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def lose_a_tensor(folder: Path) -> None:
    """Seen only when the weights are loaded, so it is the worker that refuses."""
    tensors = load_file(folder / "model.safetensors")
    del tensors[next(name for name in tensors if "q_proj" in name)]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def gpt2(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [(truncate, "is damaged: "), (lose_a_tensor, "lack model."), (gpt2, "gpt2 of")],
)
def test_it_ends_at_once(
    tmp_path: Path, model: Path, damage: Callable[[Path], None], says: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(model, folder)
    damage(folder)
    command = [*preloaded.python(), "-m", "kvstitch.service.cli", "serve", "--port", "0"]
    command += ["--model", str(folder), "--data-dir", str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    lines = ended.stderr.decode().strip().splitlines()
    assert ended.returncode == 3, lines
    assert says in lines[-1], lines
    assert not any("the worker ended" in line or "Traceback" in line for line in lines)
