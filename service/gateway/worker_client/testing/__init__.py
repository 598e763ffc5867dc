"""A fake worker without a model, for tests."""
