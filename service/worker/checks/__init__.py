"""The correctness gate at work: answers held against full prefill in spare time."""
