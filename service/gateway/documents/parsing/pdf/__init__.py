"""Pages of PDF and pictures: characters, or what OCR reads, to words, lines and paragraphs."""
