"""Workers on several machines: detached Ray actors, each of which supervises one worker process.

Ray places the actors and brings them back on another machine when one is lost. Tokens never go
through Ray: gateways connect to the worker processes over ZeroMQ. Nothing here imports ray before
`ray_cluster.connect` is called.
"""
