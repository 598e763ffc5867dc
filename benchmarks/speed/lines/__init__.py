"""The lines of the table, one module each, in the table's order."""

ORDER = (
    "ttft",
    "long_prompt",
    "decode",
    "throughput",
    "tiers",
    "loading",
    "planner",
    "fairness",
    "reuse",
    "precompute",
    "gateway",
    "attention",
    "ttft_sweep",
    "tpot_sweep",
)
