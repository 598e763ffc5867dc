"""Load on a running service, over HTTP alone: locust users and an open-loop runner.

Imports nothing of the service. `sse`, `answer` and `routes` need the standard library alone, so
that locust's image can hold nothing else.
"""
