"""What the analysis keeps of a hostile text's words."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, gc, random, re
from pathlib import Path

from benchmarks.hostile.ordinary import ordinary_documents
from kvstitch.retriever.analysis.analyser import analyse_text

def held():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

source = random.Random(1)

def analyse(words, letters, longest):
    made = ["".join(source.choices(letters, k=source.randint(1, longest))) for _ in range(words)]
    passages = [" ".join(made[at : at + 200]) for at in range(0, words, 200)]
    return [analyse_text("", passage) for passage in passages]  # all at once, as a text's are

NOISE = (("abcdefghijklmnopqrstuvwxyz", 12), ("абвгдежзийклмн", 10), ("äöüabcdefg", 30))
for document in ordinary_documents(0):  # tables of languages are read once
    analyse_text("", document["text"])
for letters, longest in NOISE:
    analyse(2_000, letters, longest)
before = held()
for letters, longest in NOISE:
    analyse(30_000, letters, longest)
print(held() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_words_that_come_once_are_not_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 12
