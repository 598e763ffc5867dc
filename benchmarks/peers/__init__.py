"""kvstitch beside the servers that users would otherwise pick, over HTTP, in one run.

Every server gets the same token ids, one prompt after another, in an order that rotates.
"""
