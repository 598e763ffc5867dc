"""What a tokenizer keeps of a hostile document's words."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, random, re, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from tokenizers import Tokenizer, models

from kvstitch.retriever.embedders import keep_no_words

def held():
    ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

letters = {letter: number for number, letter in enumerate([*"?abcdefgh", "ab"])}
tokenizer = Tokenizer(
    models.BPE(letters, [("a", "b")])
    if sys.argv[1] == "bpe"
    else models.Unigram([(letter, -1.0) for letter in letters], unk_id=0)
)
if sys.argv[2] == "none":
    keep_no_words(tokenizer)
together, before = Barrier(4), held()

def meet(seed):
    source = random.Random(seed)
    for _ in range(2_000):
        tokenizer.encode("".join(source.choices("abcdefgh", k=250)))
    together.wait()  # so that each is another thread's

with ThreadPoolExecutor(4) as pool:
    list(pool.map(meet, range(4)))
    print(held() - before)  # what a thread keeps goes with it
"""


def grown(model: str, words: str) -> float:
    """What the process has grown by, in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model, words], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_no_thread_keeps_words(model: str) -> None:
    assert grown(model, "none") < 8 < grown(model, "many")
