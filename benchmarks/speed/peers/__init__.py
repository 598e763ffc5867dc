"""Other software that does the same work, to be measured in turn with ours."""
