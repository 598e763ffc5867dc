"""Which chunks answer a question: vectors, words, and both."""
