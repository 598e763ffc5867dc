"""How the demo model was made."""
