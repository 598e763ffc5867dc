"""How near to the physical limits each part comes: `python -m benchmarks.speed`.

A line of the table is a module in `lines` with one function, `run(setup) -> Outcome`. It runs what
it compares in turn, so that a ratio never compares two moments of a noisy machine.
"""
