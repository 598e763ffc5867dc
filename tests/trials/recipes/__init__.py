"""The commands of docs/recipes.md, run as they stand there."""
