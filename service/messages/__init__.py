"""Everything that gateway and worker say to each other, one typed message per fact.

requests   what a gateway sends: prompts, chunks to compute or delete, questions about the worker
reports    what an answer says of itself: segments, forecasts, what became of its tokens
replies    what a worker sends
wire       messages as bytes, and the versions of the protocol

The same objects are what the engine takes, what it returns, and what the HTTP API is filled from.
Every `Generate` ends in exactly one `Done` or `Failed`; every `Precompute` in one `Precomputed`
per chunk; every `Purge` in one `Purged`; every `AskGate` in one `GateStates`. Durations are seconds
taken inside one process's monotonic clock.
"""
