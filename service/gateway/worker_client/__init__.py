"""The worker process as the gateway sees it: its protocol, the client, the supervisor."""
