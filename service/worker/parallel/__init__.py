"""Tensor parallelism: several processes (ranks), each with some heads of every layer.

Rank 0 is the worker. It runs the engine, the loader and the store, and decides everything. The
others run the same functions of `forward` on their heads, step by step as rank 0 does. Nothing in
here is imported unless a worker is started with more than one rank.

    processes      starts and ends the other ranks; loads the model in all of them
    calls          what rank 0 sends: functions and their arguments, and the KV that all ranks have
    other_rank     a process that runs what rank 0 sends
    sharded_model  one rank's part of a decoder
    exchange       sums, and tensors of some heads, between the ranks
"""
