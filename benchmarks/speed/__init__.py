"""How close each part comes to physical limits and to other software: `python -m benchmarks.speed`.

Each line of the table is a module in `lines` with a function `run(setup) -> Outcome`. What a line
compares takes turns, so that a ratio never compares two distant moments of a noisy machine.
"""
