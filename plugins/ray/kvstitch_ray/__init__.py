"""Ray: workers on several machines (`kvstitch cluster`), and bulk ingestion (`kvstitch bulk`)."""

from __future__ import annotations

import argparse

from kvstitch.service.plugins import Verb, hookimpl


@hookimpl
def command_line_verbs() -> list[Verb]:
    return [
        Verb("bulk", "very many documents into a fleet's tiers, on Ray", _add_bulk),
        Verb("cluster", "workers on several machines, with Ray", _add_cluster),
    ]


@hookimpl
def worker_sources() -> dict[str, str]:
    return {"ray": "kvstitch_ray.cluster.discovery:source"}


def _add_bulk(parser: argparse.ArgumentParser) -> None:
    from kvstitch_ray.bulk.command import add_arguments

    add_arguments(parser)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    from kvstitch_ray.cluster.command import add_arguments

    add_arguments(parser)
