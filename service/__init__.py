"""kvstitch: RAG serving from stitched KV caches. Two processes, gateway and worker."""

__version__ = "0.2.0"
