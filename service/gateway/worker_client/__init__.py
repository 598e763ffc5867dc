"""The worker process as the gateway sees it: messages, client, supervisor."""
