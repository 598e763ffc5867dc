"""Loading models, of a worker and of a gateway that embeds, imports no compiler, and leaves
everything as importable as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.service.worker.tiny import FAMILIES, random_model, rope_of, tiny_config

PROGRAM = """
import sys
from importlib.util import find_spec

from kvstitch.service.gateway.search.async_retriever import make_embedder
from kvstitch.service.settings import load as settings
make_embedder(settings(embedder="")).start()
from kvstitch.service.worker.forward import selfcheck
from kvstitch.service.worker.model.load import load

for folder in sys.argv[1:]:
    selfcheck.check(load(folder, device="cpu"))  # asks the model of transformers itself
unused = {"torch._dynamo", "torch.distributed.tensor", "scipy"}
assert not unused & set(sys.modules), unused & set(sys.modules)

import torch._dynamo
import torch.distributed.tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex as real
from transformers.masking_utils import TransformGetItemToIndex as when_needed
from transformers.utils import is_scipy_available, is_torch_distributed_available

assert torch._dynamo.config.__file__ and torch.distributed.tensor.DTensor
assert type(when_needed()) is real
assert is_torch_distributed_available() == torch.distributed.is_available()
assert is_scipy_available() == (find_spec("scipy") is not None)
twice = torch.compile(lambda x: 2 * x, backend="eager")
assert twice(torch.ones(2)).tolist() == [2, 2]
"""


def test_compilers_are_not_imported_and_can_be_later(tmp_path: Path) -> None:
    """Every family, in a process that has imported nothing else."""
    folders = [tmp_path / family for family in FAMILIES]
    for folder in folders:
        random_model(tiny_config(folder.name, rope_of(folder.name))).save_pretrained(folder)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-3000:]
