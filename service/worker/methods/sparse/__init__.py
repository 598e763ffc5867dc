"""The parts of SamKV (docs/specification.md §1.7): sketches of chunks, the selection of the blocks
that a question needs, and the plan of the tokens that each layer holds and computes."""
