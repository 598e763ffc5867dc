"""Model families, one file each, found by the `model_type` of their config."""
