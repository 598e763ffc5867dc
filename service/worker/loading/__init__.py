"""Which stored chunks a prompt loads and which it computes; reading and writing them on threads."""
