"""What each CPU kernel is worth: beside what libraries do, and end to end without it."""
