"""AES-256-GCM for what is kept at rest: keys of owners, and values that they seal.

It knows no store, no catalog and no service. `cryptography` is imported when something is first
sealed or opened.
"""
