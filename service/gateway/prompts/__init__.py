"""From texts to token ids and back: templates, tokenizer, conversations."""
