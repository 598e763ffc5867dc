"""From texts to token ids and back: prompt formats, tokenizer, conversations."""
