"""The demo's invented world: words, sentences, documents and tasks."""
