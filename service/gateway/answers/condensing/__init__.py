"""What is searched for a follow-up question, which alone may not say what it is about."""
