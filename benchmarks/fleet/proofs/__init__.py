"""What a fleet promises, shown with real processes: the same answers, and nothing lost to kills."""
