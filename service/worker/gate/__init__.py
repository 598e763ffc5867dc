"""The correctness gate's decisions: which methods to trust, given checks against full prefill."""
