"""Deletion of KV: of documents that are deleted or changed, and of collections after a time."""
