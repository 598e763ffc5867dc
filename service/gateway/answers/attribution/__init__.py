"""Which passages support which sentences of an answer."""
