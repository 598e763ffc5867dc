"""What is stored of a chunk: bytes, their layout, header, checksums and codecs."""
