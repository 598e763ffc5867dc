"""What a chaos run can end in."""

from __future__ import annotations


class Violation(Exception):
    """An invariant does not hold; the message says which, and what was seen instead."""
