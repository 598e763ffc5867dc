"""Answers to questions: validation, preparation, the stream of events, the result."""
