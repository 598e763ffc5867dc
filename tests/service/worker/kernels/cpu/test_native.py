"""The module of the compiled kernels: where it is used, and what happens where it cannot be."""

from __future__ import annotations

import platform
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kvstitch.service.worker.kernels.cpu import build, native

why_missing: Any = native.why_missing.__wrapped__  # what it is a cache of
NAME = "kvstitch.service.worker.kernels.cpu._native"
GOOD = SimpleNamespace(INTERFACE=native.INTERFACE, cpu=lambda: (1, 0, 0, 1))


@pytest.fixture(autouse=True)
def on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(
    "module, said",
    [
        (GOOD, None),
        (None, "not compiled"),
        (SimpleNamespace(INTERFACE=0, cpu=GOOD.cpu), "other sources"),
        (SimpleNamespace(INTERFACE=native.INTERFACE, cpu=lambda: (0, 0, 1, 1)), "no AVX-512"),
    ],
)
def test_it_says_why_torch_is_used(
    module: Any, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None in sys.modules is how an import fails."""
    monkeypatch.setitem(sys.modules, NAME, module)
    reason = why_missing()
    assert reason is None if said is None else said in reason


def test_another_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "this is aarch64" in why_missing()


def test_both_sides_have_the_same_interface(compiled: Any) -> None:
    header = (build.FOLDER / "src" / "kernels.h").read_text()
    (number,) = re.findall(r"#define INTERFACE (\d+)", header)
    assert int(number) == native.INTERFACE == compiled.INTERFACE


def test_every_function_that_is_declared_can_be_called(compiled: Any) -> None:
    header = (build.FOLDER / "src" / "kernels.h").read_text()
    declared = set(re.findall(r"(?m)^(?:int|void) (\w+)\(", header))
    assert declared == {name for name in dir(compiled) if not name.startswith("_")} - {
        "INTERFACE",
        "cpu",
    }


def test_wrong_arguments_are_refused(compiled: Any) -> None:
    with pytest.raises(TypeError, match="rotation_rows takes 13 arguments, not 1"):
        compiled.rotation_rows(1)
    with pytest.raises(AttributeError, match="data_ptr"):
        compiled.rotation_rows(*["x"] * 13)
    with pytest.raises(TypeError):
        compiled.rotation_rows(*[None] * 5, *["x"] * 8)


def test_a_change_of_a_source_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    source, module = tmp_path / "a.c", tmp_path / "module.so"
    monkeypatch.setattr(build, "SOURCES", [source])
    monkeypatch.setattr(build, "HEADERS", [])
    monkeypatch.setattr(build, "MODULE", module)
    source.write_text("int here(void) { return 1; }")
    assert not build.is_current()
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    build.build()
    assert build.is_current() and sorted(p.name for p in tmp_path.iterdir()) == ["a.c", "module.so"]
    good = module.read_bytes()
    source.write_text("int here(void) { return }")
    with pytest.raises(RuntimeError, match="expected expression"):
        build.build()
    assert module.read_bytes() == good and len(list(tmp_path.iterdir())) == 2
