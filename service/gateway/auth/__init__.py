"""API keys: who sends a request, for which tenant, with what scopes and quotas."""
