"""Loaded by every Python process of a walked service: notes who is handed the request.

One line of JSON for each function of the product and walk, when it is first called with an argument
that carries the walk's question or document: its text, its token ids, or a name that was made from
them (a request's id, a chunk's key). What the rule is stands in scripts/walk/__main__.py.
"""

import json
import os
import re
import sys
import threading
import time
from typing import Any

ROOT = os.environ["WALK_ROOT"] + "/"
PACKAGES = ("kvstitch", "plugins")
MARKERS: dict[str, dict[str, Any]] = json.loads(os.environ["WALK_MARKERS"])
"""By walk: `word`, and `ids`, the tokens in the word's middle."""
NAME = re.compile(r"[0-9a-f-]{24,}|[a-z]{2,9}[-_][0-9A-Za-z_-]{12,}")
"""What an identifier of a request, a job or a chunk looks like."""
DEPTH = 2
ITEMS = 64

out = open(f"{os.environ['WALK_DIR']}/{os.getpid()}.jsonl", "a", buffering=1)  # noqa: SIM115
learned: dict[str, str] = {}
strange: set[str] = set()
seen: set[tuple[int, str]] = set()
files: dict[str, str | None] = {}
busy = threading.local()


def source(filename: str) -> str | None:
    """Return the file's path in the product; None for everybody else's."""
    if filename not in files:
        path = filename.removeprefix(ROOT)
        known = path != filename and path.split("/")[0] in PACKAGES
        files[filename] = path.removeprefix("kvstitch/") if known else None
    return files[filename]


def walk_of(value: Any, depth: int) -> str | None:
    """Return the walk whose question or document the value carries."""
    if isinstance(value, str):
        for walk, marker in MARKERS.items():
            if marker["word"] in value:
                return walk
        return learned.get(value)
    if isinstance(value, bytes):
        return next((w for w, m in MARKERS.items() if m["word"].encode() in value[:65536]), None)
    if hasattr(value, "typecode") and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple) and value and type(value[0]) is int:
        return next((w for w, m in MARKERS.items() if has_run(value, m["ids"])), None)
    if depth < 0:
        return None
    for part in parts(value):
        if walk := walk_of(part, depth - 1):
            return walk
    return None


def has_run(values: Any, run: list[int]) -> bool:
    first = run[0]
    return any(
        type(v) is int and v == first and list(values[i : i + len(run)]) == run
        for i, v in enumerate(values[:20000])
    )


def parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())[:ITEMS]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)[:ITEMS]
    if is_product(type(value)):
        names = getattr(type(value), "__struct_fields__", None)
        if names is None:
            names = [*getattr(value, "__dict__", ()), *slots(type(value))]
        return [getattr(value, n, None) for n in names][:ITEMS]
    return []


def slots(cls: type) -> list[str]:
    return [n for c in cls.__mro__ for n in getattr(c, "__slots__", ()) if isinstance(n, str)]


def is_product(cls: type) -> bool:
    return cls.__module__.startswith(("kvstitch.", "kvstitch_"))


def learn(value: Any, walk: str) -> None:
    """Remember names that stand beside what is carried, unless every request has them."""
    for part in [value, *parts(value)]:
        if isinstance(part, str) and part not in strange and NAME.fullmatch(part):
            learned.setdefault(part, walk)


def note(frame: Any) -> None:
    code = frame.f_code
    path = source(code.co_filename)
    if path is None or code.co_name.startswith("<"):
        return
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    arguments = [frame.f_locals.get(n) for n in names if n not in ("self", "cls")]
    if code.co_flags & 0x08:  # **keywords
        arguments.append(frame.f_locals.get(code.co_varnames[len(names) + bool(code.co_flags & 4)]))
    for value in arguments:
        walk = walk_of(value, DEPTH)
        if walk is None:
            collect_strange(value)
            continue
        learn(value, walk)
        key = (id(code), walk)
        forms = sorted(form_names(value))
        if key in seen and not forms:
            return
        seen.add(key)
        line = {"t": time.monotonic(), "walk": walk, "file": path, "forms": forms}
        out.write(json.dumps(line | {"function": code.co_qualname}) + "\n")
        return


def form_names(value: Any) -> set[str]:
    """Return the product's classes among the value and its items that carry a walk themselves."""
    items = value if isinstance(value, list | tuple) else [value]
    return {type(i).__name__ for i in items[:ITEMS] if is_product(type(i)) and walk_of(i, 1)}


def collect_strange(value: Any) -> None:
    for part in [value, *parts(value)]:
        if isinstance(part, str) and NAME.fullmatch(part) and part not in learned:
            strange.add(part)


def profile(frame: Any, event: str, arg: Any) -> None:
    if event not in ("call", "return") or getattr(busy, "on", False):
        return
    if source(frame.f_code.co_filename) is None:
        return
    busy.on = True
    try:
        if event == "call":
            note(frame)
        elif isinstance(arg, str) and NAME.fullmatch(arg) and arg not in strange:
            for walk in MARKERS:
                if (id(frame.f_code), walk) in seen:
                    learned.setdefault(arg, walk)
    except Exception as error:  # a walk never changes what is walked
        out.write(json.dumps({"error": repr(error)}) + "\n")
    finally:
        busy.on = False


threading.setprofile(profile)
sys.setprofile(profile)
