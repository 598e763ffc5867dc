"""What a method of one's own extends: dense, two-pass and sparse fusion methods, eviction."""
