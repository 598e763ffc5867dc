"""Further tasks with checkable answers, beside RULER and LongBench."""
