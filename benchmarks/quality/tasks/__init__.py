"""Further tasks with checkable answers, and all suites by name."""
