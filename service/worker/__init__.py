"""The worker process: the engine, and the server that puts it on a socket.

Importable with torch, transformers, safetensors and numpy alone; only `server` needs more.
"""
