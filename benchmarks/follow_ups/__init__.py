"""Follow-up questions: how often the search finds what a conversation's last question means."""
