"""Files to text, each parsed in a process with limits: a room per family of formats."""
