"""Makes the papers' tables and figures: `python -m benchmarks.quality.report`."""
