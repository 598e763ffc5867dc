"""Tensor parallelism: a gang of processes in which each has some heads of every layer.

Rank 0 is the worker. It runs the engine, the loader and the store, and decides everything. The
others follow: they run the same functions of `forward` on their heads, step by step as rank 0 does.
Nothing in here is imported unless a worker is started with more than one rank.
"""
