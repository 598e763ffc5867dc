"""Jobs: what was handed in, kept until it is done."""
