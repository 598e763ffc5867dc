"""A worker without a model."""
