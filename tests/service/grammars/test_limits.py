"""Hostile grammars: each ends within its limits, and takes nothing else with it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.grammars.forms import Form
from kvstitch.service.grammars.limits import COMPILE_CPU_S, SLOW_NICE
from kvstitch.service.grammars.processes import FollowedGrammar, TakesTooMuch
from tests.service.grammars.forms import Forms

MULTIPLES = [{"type": "integer", "multipleOf": number} for number in (999983, 999979)]
HOSTILE: dict[str, tuple[str, Any]] = {
    "two multiples": ("json_schema", {"anyOf": MULTIPLES}),
    "a list that doubles": (
        "grammar",
        "start: A0\n" + "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(40)) + 'A40: "x"\n',
    ),
    "too many rules": ("grammar", "start: " + "(" * 3000 + '"a"' + ")" * 3000),
    "all of nine fours": (
        "json_schema",
        {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": True}} for j in range(4)]}
                   for i in range(9)]},
    ),
    "two trees at once": (
        "json_schema",
        {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
         "$defs": {n: {"type": "object", "properties": {"c": {"$ref": f"#/$defs/{n}"}}}
                   for n in "ab"}},
    ),
    "groups in groups": ("regex", "(" * 5000 + "a" + ")" * 5000),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_time_and_others_go_on(forms: Forms, name: str) -> None:
    kind, value = HOSTILE[name]
    good = FollowedGrammar(forms.processes, 'start: "a" | "b"')
    assert (step := good.step(30.0)) is not None and not step.error
    with pytest.raises(ValueError) as refused:
        forms.processes.write(Form(kind, value))
    assert len(str(refused.value)) < 700
    if isinstance(refused.value, TakesTooMuch):
        assert f"more than {COMPILE_CPU_S:g} s" in str(refused.value)
    good.follow([next(t for t in range(1536) if forms.text([t]) == "a")])
    assert (step := good.step(30.0)) is not None and step.complete and not step.error
    good.close()


def test_what_takes_long_to_compile_comes_behind_and_following_does_not(forms: Forms) -> None:
    """The kernel is asked how the threads of the process are placed, while it compiles."""
    followed = FollowedGrammar(forms.processes, 'start: "a" | "b"')
    assert (step := followed.step(30.0)) is not None and not step.error
    (waiting,) = grammar_processes(forms)
    assert set(threads(waiting).values()) == {(os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))}
    seen: set[tuple[int, int]] = set()
    with ThreadPoolExecutor(1) as thread:
        form = Form("json_schema", {"anyOf": MULTIPLES})
        writing = thread.submit(forms.processes.write, form)
        while not writing.done():
            for pid in grammar_processes(forms) - {waiting}:
                seen |= set(threads(pid).values())
        assert isinstance(writing.exception(), TakesTooMuch)
    assert (os.SCHED_OTHER, SLOW_NICE) in seen
    followed.close()


def test_a_thread_that_computes_for_long_gets_only_what_others_leave() -> None:
    """Not before: the first computation is short."""
    script = """
import os, time
from kvstitch.service.grammars.limits import Watch, last_of_all

def computed(seconds):
    with watch.over():
        began = time.process_time()
        while time.process_time() - began < seconds:
            if os.sched_getscheduler(0) == os.SCHED_IDLE:
                return True
    return os.sched_getscheduler(0) == os.SCHED_IDLE

watch = Watch(last_of_all)
print(computed(0.001), computed(20.0))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.stdout == "False True\n", ran.stderr


def grammar_processes(forms: Forms) -> set[int]:
    """Those that are forked from this process's fork server."""
    servers = [pid for pid in children(os.getpid()) if b"fork_server" in command(pid)]
    return {child for server in servers for child in children(server)}


def children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def threads(pid: int) -> dict[str, tuple[int, int]]:
    """Policy and niceness of each thread of a process."""
    found: dict[str, tuple[int, int]] = {}
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found[folder.name] = int(fields[38]), int(fields[16])
    return found


def test_quickly_is_sooner(forms: Forms) -> None:
    started = time.process_time()
    with pytest.raises(TakesTooMuch):
        forms.processes.write(Form("json_schema", {"anyOf": MULTIPLES}), quickly=True)
    assert time.process_time() - started < 1  # of this process, which only waits


@pytest.mark.slow
def test_one_that_grows_while_it_is_followed_ends_alone(forms: Forms) -> None:
    """Ambiguous without end: every token costs more than the one before."""
    followed = FollowedGrammar(forms.processes, 'start: s\ns: s s s | "a" | ')
    token = next(t for t in range(1536) if forms.text([t]) == "a")
    for _ in range(3000):
        step = followed.step(60.0)
        assert step is not None
        if step.error:
            break
        followed.follow([token])
    else:
        pytest.fail("it was followed for ever")
    followed.close()
    assert forms.processes.write(Form("choice", ["a"])).grammar


KEYWORDS = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "not"),
    *("patternProperties", "if", "then", "else", "minProperties", "maxProperties", "prefixItems"),
    *("minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum"),
    *("exclusiveMinimum", "multipleOf", "anyOf", "oneOf", "allOf", "contains", "propertyNames"),
    *("dependentRequired", "uniqueItems", "$ref"),
)


def random_schema(source: random.Random, depth: int = 4) -> Any:
    """Keywords that do not fit together, in values that they may or may not have."""

    def value() -> Any:
        return source.choice(
            [None, True, -1, 0, 3, 2**70, 1e308, "x", "^(a|b)*$", "(", [], {}, ["a"], [1, 1]]
        )

    out: dict[str, Any] = {}
    for name in source.sample(KEYWORDS, source.randint(1, 5)):
        inner = [random_schema(source, depth - 1) for _ in range(2)] if depth else []
        if source.random() < 0.15 or not inner:
            out[name] = value()
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems"):
            out[name] = inner
        elif name in ("properties", "patternProperties"):
            out[name] = dict(zip("ab", inner, strict=True))
        elif name == "type":
            out[name] = source.choice(["object", "array", "string", "integer", ["null", "number"]])
        elif name == "$ref":
            out[name] = source.choice(["#", "#/properties/a", "#/allOf/0", "#/$defs/x"])
        elif name in ("items", "not", "if", "then", "else", "contains", "additionalProperties"):
            out[name] = inner[0]
        else:
            out[name] = value()
    return out


@pytest.mark.parametrize("block", range(4))
def test_schemas_of_chance_are_written_or_refused(forms: Forms, block: int) -> None:
    source = random.Random(block)
    for _ in range(25):
        schema = random_schema(source)
        try:
            written = forms.write(schema)
        except ValueError as error:
            assert str(error) and "Traceback" not in str(error)
            continue
        assert written.grammar
