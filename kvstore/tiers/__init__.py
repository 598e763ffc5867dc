"""The places that store chunks. Each tier implements the protocol `Tier` in `base.py`."""
