"""What a client sees of an answer: server-sent events, times, token counts, percentiles."""
