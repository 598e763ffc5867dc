"""Quality on real text: prompts for one model, records of every method, tables and a chart.

prompts → behind → `python -m benchmarks.quality` → table; served stands by
itself.
"""
