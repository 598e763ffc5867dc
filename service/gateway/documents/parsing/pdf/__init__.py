"""PDF: characters of its pages to words, lines and paragraphs."""
