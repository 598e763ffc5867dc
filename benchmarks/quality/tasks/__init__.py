"""The questions and passages that prompts are made of."""
