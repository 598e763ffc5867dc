"""What others do with the same work, to be run in turn with ours."""
