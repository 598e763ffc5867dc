"""One prompt under many configurations, against full prefill of the same prompt.

Everything runs in the engine's own layer loop and decode steps. The benchmarks use it too.
"""
