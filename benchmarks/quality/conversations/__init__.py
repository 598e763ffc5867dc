"""Conversations whose passages change at every turn: history reused or computed anew."""
