"""The stored form of a chunk: bytes, their layout, header, checksums and codecs."""
