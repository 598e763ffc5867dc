"""Load tests of a running service, over HTTP: locust users and an open-loop generator.

Nothing of the service is imported. What `locustfile.py` uses needs only the standard library,
because locust's image holds nothing else.
"""
