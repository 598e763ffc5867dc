"""Places that keep chunks. One file per tier, each behind the protocol in `base`."""
