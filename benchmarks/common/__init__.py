"""What several benchmarks use."""
