"""Answers come first: what is read, cut and embedded gives way to them on a busy machine.

Priorities share time, they do not say who is next: whoever has a core keeps it for milliseconds
when a thread of higher priority wakes up, which happens several times in a decode step. Of Linux's
classes only SCHED_IDLE gives a core away at once. It suits processes, not threads of one that
answers: these hold its locks, Python's among them, also while they get no core.
"""

from __future__ import annotations

import os
import threading

NICE = 10
"""With it a busy core gives a thread a ninth of what it gives another."""


def behind_answers() -> None:
    """Put the calling thread, and those that it starts, behind what answers. Of Linux."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def last_of_all() -> None:
    """Let the calling process, and those that it starts, take only what others leave."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
