"""HTML, Markdown, reStructuredText and plain text."""
