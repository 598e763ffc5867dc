"""What a GPU can show: the tests marked `gpu`, then a table. `run.sh` does both in one call."""
