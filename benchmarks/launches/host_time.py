"""The time that a prefill by the GPU's path takes in Python, without a GPU.

    python -m benchmarks.launches.host_time [--layers 32]

The path runs on plain CPU tensors of a tiny width: "cuda" and "cpu" are exchanged where the
worker's source compares a device with them, when it is imported. Products with weights, attention,
norms and Triton kernels return memory as it is, so that nearly all time is Python and torch's
dispatcher. It is a lower bound: what the driver and Triton's launcher take is missing, for which
the counts are to be multiplied by the microseconds of a launch. Prints JSON; nothing that is
imported here may be used for anything else, so it is a process of its own (`measured`).
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

SWAPPED = {"cuda": "cpu", "cpu": "cuda"}
PACKAGES = ("service.worker.", "kvstore.")


def measured(
    methods: Sequence[str], *, layers: int, repetitions: int = 20, graphs: bool = False
) -> dict[str, float]:
    """Return milliseconds of a prefill by method, in a process of its own.

    Raises:
        subprocess.CalledProcessError: it failed; what it wrote is on the standard error.
    """
    command = [sys.executable, "-m", "benchmarks.launches.host_time", "--layers", str(layers)]
    command += ["--repetitions", str(repetitions), "--methods", ",".join(methods)]
    command += ["--graphs"] * graphs
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


class _Exchange(ast.NodeTransformer):
    """Exchanges the two devices where something is compared with them or looked up by them."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        node.left, *node.comparators = map(_exchanged, (node.left, *node.comparators))
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        node.keys = [key and _exchanged(key) for key in node.keys]
        return node


def _exchanged(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Constant) and node.value in ("cuda", "cpu"):
        return ast.copy_location(ast.Constant(SWAPPED[node.value]), node)
    return node


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Return the changed code; it is never read from a cache nor written to one."""
        tree = ast.parse(self.get_data(self.path))
        changed = ast.fix_missing_locations(_Exchange().visit(tree))
        return compile(changed, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(PACKAGES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Nothing:
    """Stands for a Triton kernel; launches nothing."""

    def __init__(self, _: Callable[..., None]) -> None:
        pass

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._launch

    def _launch(self, *args: Any, **options: Any) -> None:
        pass


class _Recorder:
    """Stands for `CudaGraphs`; a replay computes nothing and takes no time."""

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        return run(), lambda: None

    def seconds(self, _: Callable[[], object]) -> float:
        return 0.0


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype)


def _like_first(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


@contextmanager
def _without_arithmetic() -> Iterator[None]:
    stands = {
        "linear": _linear, "rms_norm": _like_first, "scaled_dot_product_attention": _like_first,
    }  # fmt: skip
    with ExitStack() as stack:
        for name, stand in stands.items():
            stack.enter_context(patch.object(F, name, stand))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launches.host_time")
    parser.add_argument("--methods", required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--graphs", action="store_true", help="recorded layers are replayed")
    given = parser.parse_args()
    sys.meta_path.insert(0, _Finder())
    # Imported only now, so that the worker's source is changed.
    from benchmarks.launches.driver import driver_replaced, kernels_replaced
    from benchmarks.launches.prefills import Case, engine
    from benchmarks.launches.tally import Tally
    from service.worker.api import prefill_graphs

    torch.set_num_threads(1)
    found = {}
    with (
        _without_arithmetic(),
        driver_replaced(Tally()),
        kernels_replaced(_Nothing),
        patch.object(prefill_graphs, "CudaGraphs", _Recorder),
        # Nothing is computed here, so there is nothing to compare.
        patch.object(prefill_graphs, "_difference", lambda *_: 0.0),
        engine(Case(layers=given.layers, tokens=128), graphs=given.graphs) as ask,
    ):
        for name in given.methods.split(","):
            taken = []
            for _ in range(3 + given.repetitions):
                started = time.thread_time()
                ask(name)
                taken.append(1e3 * (time.thread_time() - started))
            found[name] = statistics.median(taken[3:])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
