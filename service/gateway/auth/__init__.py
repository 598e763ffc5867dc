"""API keys: who asks, for which tenant, with what scopes and quotas."""
