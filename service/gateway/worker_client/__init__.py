"""The worker process as the gateway sees it: protocol, connection, client, supervisor."""
