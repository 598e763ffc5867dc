"""Chaos: a real service and a real Redis under random kills, damage and hostile clients, with
invariants that are checked all the time. `python -m tests.trials.chaos` runs it, and
docs/testing.md reports.

    campaign      episodes until the time is up; what is kept between runs
    episode       actions under load, then calm, then the invariants
    actions/      what is done to the service
    load          what clients do meanwhile, and what they may get
    twin          what an undisturbed service answers and stores
    invariants    what must hold in calm
    child/        what runs inside the service's processes: dying at a named point, another clock
"""
