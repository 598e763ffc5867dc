"""Measures which heads of a model retrieve."""
