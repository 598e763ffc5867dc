"""What the API answers, each thing one class: the service makes them, the client reads them.

answers      /v1: answers, what became of KV and tokens, dry runs, searches, rankings
documents    /admin: documents, jobs, collections, deletions
base         what makes a class a record

They are dataclasses of the standard library, which the service has pydantic describe and write.
"""
