"""What methods need to know of a model: which heads retrieve, which layers decide."""
