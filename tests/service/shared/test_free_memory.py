"""Freed memory goes back to the system, also where pieces in use lie between it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
from service.shared.free_memory import give_back

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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="of the GNU C library")
def test_what_lies_between_pieces_in_use_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    given_back_kib, kept = map(int, done.stdout.split())
    assert kept == 2_000_000
    assert given_back_kib > 40_000
