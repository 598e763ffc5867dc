"""The keys of tenants: made, wrapped, kept, rotated, deleted. It seals nothing itself."""
