"""From a request as it was sent to the message that the worker gets."""
