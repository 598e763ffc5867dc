"""From measured cases to tables and plots."""
