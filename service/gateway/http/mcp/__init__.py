"""The Model Context Protocol at /mcp: the service as tools of an agent."""
