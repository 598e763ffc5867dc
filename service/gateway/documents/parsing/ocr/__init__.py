"""Pictures to words, where the extra `ocr` is installed."""
