"""vLLM alone beside vLLM that is handed stitched KV, on the same prompts, in one run.

    KVSTITCH_VLLM_PYTHON=… python -m benchmarks.peers.handed --model FOLDER --out FOLDER

One vLLM with kvstitch's connector serves both; a third contestant is kvstitch's own engine. Asks

    one at a time   prompts of 8 and of 32 known documents in new orders: TTFT and TPOT by prompt
    the same texts  of --texts prompts: vLLM alone, eight at a time, in steps of 256 tokens and not
                    compiled; vanilla handed over; question_scout handed over and by the own engine
    16 at once      prompts that both have answered before: tokens a second
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from benchmarks.peers.processes import Absent
from benchmarks.peers.prompts import Encoder, Prompt
from benchmarks.peers.servers.kvstitch import KvstitchServer
from benchmarks.peers.servers.own_process import OwnProcess
from benchmarks.peers.servers.peer import Conditions
from benchmarks.peers.servers.vllm import VllmServer
from benchmarks.peers.workloads import SHUFFLED, Rounds, sources
from benchmarks.quality.tasks import natural_questions
from kvstitch_tune.records import describe

PLUGIN = Path(__file__).parents[2] / "plugins" / "vllm"
CONNECTOR = {"kv_connector": "StitchedKv", "kv_connector_module_path": "kvstitch_vllm.connector",
             "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"}  # fmt: skip
SCOUT, VANILLA = "question_scout", "vanilla"
SIZES = {"1K": 8, "4K": 32}
"""Documents of a prompt by the name of its length."""
TOGETHER, AT_ONCE = 8, 16
OTHER_VLLMS = {"in steps of 256 tokens": ("--max-num-batched-tokens", "256"),
               "not compiled": ("--enforce-eager",)}  # fmt: skip


class OtherVllm(VllmServer):
    """vLLM alone with other options (the last of a name counts): it rounds in another way."""

    def __init__(self, conditions: Conditions, options: Sequence[str]) -> None:
        super().__init__(conditions)
        self._options = options

    def command(self, port: int) -> Sequence[str]:
        return [*super().command(port), *self._options]


class ConnectedVllm(VllmServer):
    def command(self, port: int) -> Sequence[str]:
        return [*super().command(port), "--kv-transfer-config", json.dumps(CONNECTOR)]

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "PYTHONPATH": str(PLUGIN)}


class HandingKvstitch(KvstitchServer):
    """kvstitch whose answers a vLLM decodes; without a URL, its own engine does."""

    def __init__(self, method: str, conditions: Conditions, vllm: str) -> None:
        super().__init__(method, conditions)
        self._vllm = vllm
        self.name += " handed over" if vllm else ""

    def environment(self) -> Mapping[str, str]:
        dtype = self.conditions.dtype
        own = {"KVSTITCH_PLUGINS": "kvstitch_vllm.plugin", "KVSTITCH_DTYPE": dtype}
        handing = {"KVSTITCH_ENGINE": "vllm", "KVSTITCH_ENGINE_URL": self._vllm}
        return {**super().environment(), **own, **(handing if self._vllm else {})}


@dataclass(frozen=True)
class Answer:
    """Of one prompt: seconds to the first token and for each after it."""

    ttft_s: float
    tpot_s: float
    tokens: int
    text: str
    hand_over_s: float


def ask(server: OwnProcess, prompt: Prompt, tokens: int, method: str = "") -> Answer:
    """Ask for exactly so many tokens, unless the model ends before."""
    dialect = server.dialect  # type: ignore[attr-defined]
    body = dialect.body(prompt, tokens) | ({"fusion": {"method": method}} if method else {})
    began, at, text, done = time.perf_counter(), list[float](), "", dict[str, Any]()
    with httpx.stream("POST", server.url + dialect.path, json=body, timeout=300.0) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            content = json.loads(line.removeprefix("data: "))
            if "error" in content:
                raise RuntimeError(f"{server.name}: {content['error']}")
            done = content if content.get("usage") else done
            choices = content.get("choices")
            piece = content.get("text", "") if choices is None else (choices or [{}])[0].get("text")
            if piece and "usage" not in content:
                at.append(time.perf_counter())
                text += piece
    made = done["usage"]["completion_tokens"]
    each = (at[-1] - at[0]) / max(1, made - 1)
    handed = (done.get("stages") or {}).get("hand_over", 0.0)
    # Our route sends the words that begin the answer as its first text; the others do not.
    text = text.removeprefix(server.conditions.begins).strip()
    return Answer(at[0] - began, each, made, text, handed)


def together(
    server: OwnProcess, prompts: Sequence[Prompt], tokens: int, number: int, method: str = ""
) -> list[Answer]:
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(lambda prompt: ask(server, prompt, tokens, method), prompts))


def measure(args: argparse.Namespace, folder: Path, say: Any) -> dict[str, Any]:
    encoder = Encoder(args.model)
    conditions = Conditions(
        args.model.resolve(), folder, args.threads, args.context, args.cache_mib,
        begins=encoder.answer_prefix, step_tokens=args.context, dtype=args.dtype,
    )  # fmt: skip
    with ExitStack() as opened:
        vllm: VllmServer = opened.enter_context(_running(ConnectedVllm(conditions), say))
        handing = opened.enter_context(_running(HandingKvstitch(SCOUT, conditions, vllm.url), say))
        own = opened.enter_context(_running(HandingKvstitch(VANILLA, conditions, ""), say))
        found = sources(natural_questions.load("test"))
        rounds = {
            name: Rounds(
                found[:64], found[64:], count, encoder.ids, begins=encoder.answer_prefix,
                workloads=[SHUFFLED], room=args.context - args.tokens,
            )
            for name, count in SIZES.items()
        }  # fmt: skip
        for server in (handing, own):
            server.store([source.document for source in rounds["1K"].corpus])
            server.rest()
        for server in (vllm, handing, own):
            for prompt in rounds["1K"].warm_up():
                ask(server, prompt, 2)
        about = vllm.about()
        result: dict[str, Any] = {
            "model": args.model.name, "seed": args.seed, **describe(),
            "vLLM": f"{about.version}, {about.settings}",
        }  # fmt: skip
        for name, number in (("1K", args.prompts), ("4K", (args.prompts + 1) // 2)):
            rows = []
            for _, (prompt,) in zip(range(number), rounds[name].made(args.seed), strict=False):
                answers = list[Answer]()
                for server, method in ((vllm, ""), (handing, ""), (own, SCOUT)):
                    for each in (vllm, handing, own):
                        each.rest()  # they also work after an answer
                    answers.append(ask(server, prompt, args.tokens, method))
                first, second, third = answers
                rows.append((len(prompt.ids), first, second, third))
                say(f"{name}: {first.ttft_s:.2f} s alone, {second.ttft_s:.2f} s handed over")
            result[name] = _ratios(rows)
        made = rounds["1K"].made(args.seed + 1)
        prompts = [next(made)[0] for _ in range(max(args.texts, AT_ONCE))]
        texts = prompts[: args.texts]
        alone = [ask(vllm, p, args.tokens).text for p in texts]
        others = {
            "vLLM, eight at a time": together(vllm, texts, args.tokens, TOGETHER),
            "vanilla handed over": [ask(handing, p, args.tokens, VANILLA) for p in texts],
        }
        scouted = [
            (ask(handing, p, args.tokens).text, ask(own, p, args.tokens, SCOUT).text) for p in texts
        ]
        same = sum(a == b for a, b in scouted)
        result["question_scout, same text as the own engine's"] = f"{same} of {len(texts)}"
        rates = {}
        for server in (vllm, handing):
            for _ in range(2):  # the second time both have the prompts
                began = time.perf_counter()
                answers = together(server, prompts[:AT_ONCE], args.tokens, AT_ONCE)
                rate = sum(a.tokens for a in answers) / (time.perf_counter() - began)
            rates[server.name] = round(rate, 2)
        result["tokens a second, 16 at once, prompts known"] = rates
    for name, options in OTHER_VLLMS.items():
        with _running(OtherVllm(conditions, options), say) as other:
            others[f"vLLM, {name}"] = [ask(other, p, args.tokens) for p in texts]
    result["same text as vLLM alone"] = {
        name: f"{sum(a.text == b for a, b in zip(answers, alone, strict=True))} of {len(texts)}"
        for name, answers in others.items()
    }
    return result


def _ratios(rows: Sequence[tuple[int, Answer, Answer, Answer]]) -> dict[str, Any]:
    """Medians and quartiles of what is handed over, over vLLM alone, prompt by prompt."""

    def told(values: list[float]) -> str:
        low, _, high = quantiles(values, n=4) if len(values) > 1 else (*values, 0.0, *values)
        return f"{median(values):.3f} [{low:.3f}, {high:.3f}]"

    return {
        "prompts": len(rows),
        "tokens": round(median(n for n, *_ in rows)),
        "TTFT of vLLM alone, s": told([a.ttft_s for _, a, _, _ in rows]),
        "TTFT over vLLM's": told([b.ttft_s / a.ttft_s for _, a, b, _ in rows]),
        "the own engine's TTFT over vLLM's": told([c.ttft_s / a.ttft_s for _, a, _, c in rows]),
        "TPOT over vLLM's": told([b.tpot_s / a.tpot_s for _, a, b, _ in rows]),
        "share of the hand-over in TTFT": told([b.hand_over_s / b.ttft_s for _, _, b, _ in rows]),
    }


@contextmanager
def _running(server: OwnProcess, say: Any) -> Iterator[Any]:
    """A server, started and stopped."""
    say(f"starting {server.name}")
    server.start()
    try:
        yield server
    finally:
        server.stop()


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.handed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--prompts", type=int, default=8, help="of 1K; half as many of 4K")
    parser.add_argument("--texts", type=int, default=50, help="prompts whose texts are compared")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer")
    parser.add_argument("--context", type=int, default=5120)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-mib", type=int, default=2048, help="for KV, of every server")
    parser.add_argument("--dtype", default="bfloat16", help="(no bfloat16 instructions: float32)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(given)
    with tempfile.TemporaryDirectory(prefix="kvstitch-handed-") as folder:
        try:
            result = measure(args, Path(folder), lambda text: print(text, file=sys.stderr))
        except Absent as error:
            print(error, file=sys.stderr)
            return 1
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "handed.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
