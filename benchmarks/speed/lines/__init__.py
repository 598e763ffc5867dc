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
    "precompute",
    "gateway",
)
