"""How idle OpenMP threads wait, which is read once, when torch is loaded.

Threads that spin without end take the cores from those that work. Threads that sleep at once are
woken at every operation: two threads then prefill a quarter slower. So they spin for about 0.2 ms,
which costs nothing measurable where cores are contended (ten times as long costs up to half).
"""

from __future__ import annotations

import os

ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}


def prepare() -> None:
    """Set the environment of this process, where it says nothing else; before torch is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
