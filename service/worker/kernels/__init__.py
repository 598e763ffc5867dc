"""Arithmetic the stock modules do not do well on some hardware, each beside its plain form."""
