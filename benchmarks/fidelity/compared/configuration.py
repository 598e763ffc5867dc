"""A configuration to compare: a method with parameters, and how chunks are stored."""

from __future__ import annotations

import ast
import hashlib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.worker.methods.api import DenseMethod, PrefillResult, Reads
from tuning.case import Case, Recipe


@dataclass(frozen=True)
class Configuration:
    """One configuration.

    Family, variant, prefix mode and codec name a curve, whose points differ in cost.

    Attributes:
        family: name of the method, such as a3.
        method: with its parameters.
        amount: how much is recomputed, such as "r=0.15".
        variant: what else differs from the family's standard.
        prefix_mode: what chunks are precomputed behind.
        codec: that chunks are stored with.
    """

    family: str
    method: DenseMethod | Recipe
    amount: str = ""
    variant: str = ""
    prefix_mode: str = "system"
    codec: str = "raw"

    @property
    def curve(self) -> str:
        codec = "" if self.codec == "raw" else self.codec
        parts = (self.family, self.variant, self.prefix_mode, codec)
        return " ".join(part for part in parts if part)

    @property
    def name(self) -> str:
        codec = "" if self.codec == "raw" else self.codec
        parts = (self.family, self.variant, self.amount, self.prefix_mode, codec)
        return " ".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """16 hex characters that identify parameters, storage and the code of the method's files.

        Comments and the engine's code are not included.
        """
        text = f"{self.method!r} {self.prefix_mode} {self.codec} {_code(type(self.method))}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def run(self, case: Case) -> PrefillResult:
        if isinstance(self.method, DenseMethod):
            return case.prefill(self.method)
        return self.method.run(case)

    @property
    def reads_cache(self) -> bool:
        return not isinstance(self.method, DenseMethod) or self.method.reads is not Reads.NOTHING


def _code(kind: type[DenseMethod] | type[Recipe]) -> str:
    """Code of the files that define a method's classes."""
    own = [of.__module__ for of in kind.__mro__ if of.__module__ not in ("builtins", "typing")]
    files = {sys.modules[name].__file__ for name in own}
    return "".join(_parsed(file) for file in sorted(filter(None, files)))


@cache
def _parsed(file: str) -> str:
    """A file's code without comments and docstrings, which hours of measuring do not depend on."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for name, body in ast.iter_fields(node):
            if isinstance(body, list):
                setattr(node, name, [each for each in body if not _is_text(each)])
    return ast.dump(tree)


def _is_text(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
