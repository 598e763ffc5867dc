"""vLLM decodes what kvstitch has stitched.

`connector`, `segment` and `weights` run in vLLM's environment, where there is no kvstitch; the
other modules run in the gateway and its workers.
"""
