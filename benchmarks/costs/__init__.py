"""What a feature costs and what it is worth: time, memory, operations, answers."""
