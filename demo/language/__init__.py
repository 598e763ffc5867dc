"""The invented world of the demo: its words, facts and tasks."""
