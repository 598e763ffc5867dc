"""Gives memory that was freed back to the system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Give it back. The C library keeps what lies between pieces in use: after a text of some
    megabytes, hundreds. Libraries without `malloc_trim` keep it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
