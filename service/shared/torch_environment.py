"""What torch's libraries read from the environment, once, when torch is loaded.

OpenMP: threads that spin without end take the cores from those that work. Threads that sleep at
once are woken at every operation: two threads then prefill a quarter slower. So they spin for about
0.2 ms, which costs nothing measurable where cores are contended (ten times as long costs up to
half).

oneDNN makes a program for every shape of a product and keeps 1,024 of them, torch's layer above it
as many again for each thread: in bfloat16 half a megabyte each. Prompts and batches of ever new
lengths took hundreds of megabytes of a process. A program is made in 0.3 ms; among 32 all layers of
a model find theirs, and so do questions, whose embedder pads them to few lengths. All threads share
those of oneDNN, where the layer above finds what it does not keep itself.
"""

from __future__ import annotations

import os

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "3000",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
    "LRU_CACHE_CAPACITY": "4",  # of ideep, the layer above
}


def prepare() -> None:
    """Set the environment of this process, where it says nothing else; before torch is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
