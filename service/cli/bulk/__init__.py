"""`kvstitch bulk`: very many documents into a fleet's catalog and KV tiers, by workers on Ray."""
