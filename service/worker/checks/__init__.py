"""The correctness gate at work: compares answers with full prefill in spare time."""
