"""Freed memory goes back to the system, and torch keeps few programs for shapes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvstitch.service.shared import resources

PROGRAM = """
from kvstitch.service.shared.resources import give_back

def held():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

pieces = [bytes([number % 256]) * 2000 for number in range(50_000)]
kept = pieces[::50]
del pieces
before = held()
give_back()
print(before - held(), sum(map(len, kept)))
"""

QUIET = """
import gc, time
from kvstitch.service.shared import resources

resources.LOOK_EVERY_S = 0.2
kept = [{} for _ in range(100_000)]
resources.look_after_memory()
assert len(gc.get_objects()) < 10_000  # what a collection looks at

pieces = [bytes([number % 256]) * 2000 for number in range(50_000)]
kept += pieces[::50]
pieces.append(pieces)  # which only a collection frees
del pieces
until = time.process_time() + 1
while time.process_time() < until:
    pass
before = held()
until = time.monotonic() + 30
while held() > before - 40_000 and time.monotonic() < until:
    time.sleep(0.1)
print(before - held())
"""
GNU = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="of the GNU C library"
)


@GNU
def test_what_lies_between_pieces_in_use_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    given_back_kib, kept = map(int, done.stdout.split())
    assert kept == 2_000_000
    assert given_back_kib > 40_000


@GNU
def test_threads_share_heaps() -> None:
    program = """
import ctypes, re, threading
from kvstitch.service.shared import resources

resources.share_heaps()
ends = threading.Event()
begun = [threading.Event() for _ in range(8)]

def hold(begun):
    piece = bytearray(100_000)
    begun.set()
    ends.wait()

for each in begun:
    threading.Thread(target=hold, args=(each,)).start()
for each in begun:
    each.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
ends.set()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("<heap nr=") == resources.HEAPS


@GNU
def test_a_process_that_is_quiet_gives_back_what_it_took() -> None:
    held = PROGRAM[PROGRAM.index("def held") : PROGRAM.index("pieces")]
    done = subprocess.run(
        [sys.executable, "-c", held + QUIET], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40_000


def test_what_files_take_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "PROC", tmp_path)
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    assert resources.free_memory() is None
    (tmp_path / "meminfo").write_text(
        "MemTotal: 24000 kB\nMemFree: 300 kB\nMemAvailable: 9000 kB\n"
    )
    assert resources.free_memory() == 9000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\ninactive_file 1500000\n")
    assert resources.free_memory() == 9000 * 1024
    (tmp_path / "memory.max").write_text("4000000\n")
    assert resources.free_memory() == 2_500_000
    (tmp_path / "memory.current").write_text("9000000\n")
    assert resources.free_memory() == 0


PRODUCTS = """
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from kvstitch.service.shared import resources

resources.prepare_torch()
import torch


def mib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024


torch.set_num_threads(1)
weight = torch.randn(1536, 576, dtype=torch.bfloat16)
rows = torch.randn(480, 576, dtype=torch.bfloat16)
together = Barrier(THREADS)


def multiply(first):
    together.wait()
    with torch.inference_mode():
        for count in range(first, first + 400 // THREADS):
            torch.nn.functional.linear(rows[:count], weight)
    together.wait()  # what a thread keeps goes with it


torch.nn.functional.linear(rows, weight)
before = mib()
with ThreadPoolExecutor(THREADS) as pool:
    found = pool.map(multiply, range(8, 408, 400 // THREADS))
    list(found)
    print(mib() - before)
"""

CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # torch's own are 1,024


def grown(threads: int, environment: dict[str, str]) -> float:
    """What the process has grown by, in MiB."""
    made = subprocess.run(
        [sys.executable, "-c", PRODUCTS.replace("THREADS", str(threads))],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return float(made.stdout)


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no programs for bfloat16 are kept"
)
def test_products_of_ever_new_shapes_take_little_memory() -> None:
    """How large a program is differs between processors, and those of old ones need none."""
    unbounded = grown(5, dict.fromkeys(CAPACITIES, "1024"))
    assert grown(5, {}) < max(unbounded / 2, 10)
