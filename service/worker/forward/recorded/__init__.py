"""Layers of a prefill that a GPU replays from recordings."""
