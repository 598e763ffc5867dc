"""Attribution: how often the passage that is cited for a sentence is the one that answers."""
