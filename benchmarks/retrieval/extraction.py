"""Is a neighbour's secret in the KV that somebody else's answers are made from?

    python -m benchmarks.retrieval.extraction [--model FOLDER] [--secrets 3] [--modes primer …]

Tenants are alike but for one word, a secret in documents that the asker's prompt does not hold.
Whoever asks is given passages of their own documents only, by every method and prefix mode; what
they see of an answer (its text, and log-probabilities to the last digit) is compared between the
tenants. If it is the same for every secret, nobody can tell the secret from it, whatever they try.
If it differs, the KV has seen the secret, and who knows all else can find it out by guessing.

    permissions   the secret's documents have other readers
    filter        they have none, and the asker leaves them out by a metadata filter
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from demo.process import free_port, service
from kvstitch.retriever.scope import View
from kvstitch.service.gateway.auth.keys import KeyStore
from kvstitch.service.prompt import PREFIX_MODES
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/extraction.json")
GUARDS: Final = ("permissions", "filter")
SECRETS: Final = ("amber", "cobalt", "silver", "violet")
BEHIND: Final = ("primer", "neighbours")  # modes in which a chunk's KV has seen other documents
QUESTIONS: Final = ("What is the code word of the vault?", "The code word is")
PLACES: Final = ("cellar", "attic", "garden", "library")
# The planner and what is cached decide by the clock what is computed again, and how it is rounded.
# As many companions as a chunk's own kind has, and one more: its neighbours are others, too.
SERVED: Final = {
    "threads": 1, "planner": False, "prefix_cache": False, "companions": len(PLACES), "primers": 2,
}  # fmt: skip
READY_S = 600.0
TRIES = 4
"""What KV has seen tells secrets apart every time; what is loaded, or computed because it is not at
hand yet (the first prompt's own part, SamKV's sketches), is rounded otherwise once in a while."""


@dataclass(frozen=True)
class World:
    """A tenant, and the keys of who stores its documents and of who asks."""

    guard: str
    secret: str
    owner: str
    asker: str


@dataclass(frozen=True)
class Seen:
    """What the asker sees of an answer."""

    text: str
    numbers: str  # log-probabilities of its tokens and of their likeliest others


def make_worlds(data_dir: Path, secrets: Sequence[str]) -> list[World]:
    """Make the keys, in the data folder of a service that has not started yet."""
    data_dir.mkdir(parents=True, exist_ok=True)
    store = KeyStore(data_dir / "keys.sqlite3")
    store.start()
    worlds = []
    for guard in GUARDS:
        for secret in secrets:
            tenant = f"{guard}-{secret}"
            view = View(frozenset({"staff"}))
            owner = store.create(tenant=tenant)[0]
            worlds.append(World(guard, secret, owner, store.create(tenant=tenant, view=view)[0]))
    store.close()
    return worlds


def documents(world: World) -> list[dict[str, Any]]:
    """Return its documents: those of the board hold the secret, the staff's do not."""
    restricted = world.guard == "permissions"
    out: list[dict[str, Any]] = []
    for place in PLACES:
        texts = {
            "board": f"The vault is in the {place}. The code word of the vault is {world.secret}.",
            "staff": f"The vault in the {place} has a door of steel. Its code word is not told.",
        }
        for kind, text in texts.items():
            out.append({
                "doc_id": f"{kind}-{place}", "title": f"Vault, {kind}", "text": text,
                "metadata": {"kind": kind}, "readers": [kind] if restricted else [],
            })  # fmt: skip
    return out


def fill(http: httpx.Client, worlds: Sequence[World]) -> None:
    """Store the documents of all tenants, and wait until their KV is stored, too."""
    for world in worlds:
        headers = {"Authorization": f"Bearer {world.owner}"}
        sent = {"documents": documents(world)}
        http.post("/admin/precompute", json=sent, headers=headers).raise_for_status()

    def stored() -> bool:
        found = http.get("/status", headers={"Authorization": f"Bearer {worlds[0].owner}"}).json()
        corpus = found["corpus"]
        return bool(corpus["complete"]) and corpus["documents"] == len(worlds) * 2 * len(PLACES)

    until = time.monotonic() + READY_S
    while not stored():
        if time.monotonic() > until:
            raise TimeoutError("the documents are not stored")
        time.sleep(0.2)


def methods(http: httpx.Client, world: World) -> list[str]:
    """Return the names of all fusion methods."""
    headers = {"Authorization": f"Bearer {world.asker}"}
    return [each["name"] for each in http.get("/v1/methods", headers=headers).json()["fusion"]]


def ask(http: httpx.Client, world: World, method: str, question: str) -> Seen:
    """Ask for the secret, from passages of the staff's documents."""
    body = {
        "question": question,
        "filter": {"kind": "staff"},
        "retrieval": "dense",
        "top_k": len(PLACES),
        "fusion": {"method": method},
        "temperature": 0.0,
        "max_tokens": 8,
        "logprobs": 20,
        "include_text": True,
    }
    headers = {"Authorization": f"Bearer {world.asker}"}
    reply = http.post("/v1/rag/generate", json=body, headers=headers)
    reply.raise_for_status()
    found = reply.json()
    passages = [each["doc_id"] for each in found["citations"]]
    assert len(passages) == len(PLACES) and all(name.startswith("staff-") for name in passages)
    return Seen(found["text"], json.dumps(found["logprobs"]))


def tried(url: str, worlds: Sequence[World]) -> dict[str, dict[str, dict[str, Any]]]:
    """Try every method in every tenant of a service that is filled.

    Returns:
        By guard and method: `told_apart`, how many of the secrets an answer tells apart at most
        (1: it tells nothing), and `spoken`, in how many answers the secret stands, which is a guess
        where the answers are the same.
    """
    out: dict[str, dict[str, dict[str, Any]]] = {guard: {} for guard in GUARDS}
    with httpx.Client(base_url=url, timeout=600) as http:
        fill(http, worlds)
        for method in methods(http, worlds[0]):
            for guard in GUARDS:
                those = [world for world in worlds if world.guard == guard]
                told, spoken = 1, 0
                for question in QUESTIONS:
                    for _ in range(TRIES):
                        seen = [ask(http, world, method, question) for world in those]
                        if len(set(seen)) == 1:
                            break
                    told = max(told, len(set(seen)))
                    spoken += sum(
                        world.secret in each.text.lower()
                        for world, each in zip(those, seen, strict=True)
                    )
                out[guard][method] = {"told_apart": told, "spoken": spoken}
    return out


@contextmanager
def _environment(values: Mapping[str, object]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({f"KVSTITCH_{name.upper()}": str(value) for name, value in values.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    """Try every prefix mode, print and write the results; 1 if permissions let anything through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder; none: the demo model")
    parser.add_argument("--model-name", default="demo", help="as the results call it")
    parser.add_argument("--secrets", type=int, default=3, choices=range(2, len(SECRETS) + 1))
    parser.add_argument("--modes", nargs="+", default=list(PREFIX_MODES), choices=PREFIX_MODES)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for mode in arguments.modes:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            worlds = make_worlds(data, SECRETS[: arguments.secrets])
            port = free_port()
            with (
                _environment({**SERVED, "prefix_mode": mode}),
                service(data, port, Path(folder) / "log", arguments.model),
            ):
                found[mode] = tried(f"http://127.0.0.1:{port}", worlds)
        print(mode, json.dumps(found[mode]), flush=True)
        result = {
            "model": arguments.model_name, "secrets": arguments.secrets,
            "questions": len(QUESTIONS), "prefix_modes": found, "made": describe(),
        }  # fmt: skip
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    kept = [each for mode in found.values() for each in mode["permissions"].values()]
    if any(each["told_apart"] > 1 for each in kept):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
