"""Questions about real documentation, asked of a served model as a stranger would ask them."""
