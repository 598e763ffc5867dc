"""The papers' tables and figures from answers of the quality bench: `python -m` this package."""
