"""One question: from its validation to its answer."""
