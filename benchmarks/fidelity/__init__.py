"""How close each fusion method stays to full prefill, and what it costs.

`python -m benchmarks.fidelity`. Everything runs in the engine's own layer loop and decode step.
"""
