"""LoRA adapters over HTTP with a real worker: chosen by request, model name and API key."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from transformers import AutoModelForCausalLM

from kvstitch.service.cli import main
from kvstitch.service.gateway.auth.keys import KeyStore
from tests.e2e.conftest import Documents
from tests.e2e.service import Service, tiers
from tests.service.worker.lora_folders import write_lora

QUESTION = "Which colour does the family wear?"
NAMES = (None, "legal", "style")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of one data folder, made before its service starts: any adapter, and one bound to legal."""
    data = tmp_path_factory.mktemp("loras") / "data"
    store = KeyStore(data / "keys.sqlite3")
    store.start()
    made = {"any": store.create()[0], "bound": store.create(adapter="legal")[0]}
    store.close()
    return {**made, "data": str(data)}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    base = AutoModelForCausalLM.from_pretrained(model)
    attention = ("q_proj", "v_proj")
    return {
        "legal": write_lora(folder / "legal", base, size=0.7),
        "style": write_lora(folder / "style", base, modules=attention, size=0.7, seed=2),
    }


@pytest.fixture(scope="module")
def adapted(
    keys: dict[str, str], adapters: dict[str, Path], model: Path, twelve: Documents
) -> Iterator[Service]:
    """Documents are computed with the model and with legal as they come in."""
    lora = ",".join(f"{name}={folder}" for name, folder in adapters.items())
    with Service(model, Path(keys["data"]), lora=lora, lora_precompute="legal") as service:
        service.http.headers["Authorization"] = f"Bearer {keys['any']}"
        service.ingest(twelve[:4])
        yield service


def ask(service: Service, adapter: str | None, **fields: Any) -> dict[str, Any]:
    chosen = {} if adapter is None else {"adapter": adapter}
    wanted = {"fusion": {"method": "pie"}, "max_tokens": 16, "cold": "as_stored", **fields}
    return service.ask(QUESTION, **chosen, **wanted)


def test_answers_together_are_those_alone_and_report_their_adapter(adapted: Service) -> None:
    first = {name: tiers(ask(adapted, name)) for name in NAMES}
    assert first[None] == first["legal"] == ["memory"] * len(first[None])
    assert set(first["style"]) == {"cold"}  # another adapter's chunk is never used
    alone = {name: ask(adapted, name) for name in NAMES}
    assert "cold" not in tiers(alone["style"])  # what was computed has been stored
    texts = {answer["text"] for answer in alone.values()}
    assert len(texts) == len(NAMES)
    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(lambda name: ask(adapted, name), NAMES * 3))
    for name, answer in zip(NAMES * 3, together, strict=True):
        assert answer["text"] == alone[name]["text"] and answer["adapter"] == name
    counted = adapted.metrics()
    wanted = {"adapter": "style", "outcome": "ok"}
    assert counted.value("kvstitch_adapter_requests_total", **wanted) == 5


def test_openai_clients_name_the_adapter_as_the_model(adapted: Service, model: Path) -> None:
    expected = ask(adapted, "legal")["text"]
    client = openai.OpenAI(
        base_url=f"{adapted.http.base_url}/v1",
        api_key=adapted.http.headers["Authorization"].removeprefix("Bearer "),
    )
    listed = {each.id: each.model_dump() for each in client.models.list()}
    assert {name for name, each in listed.items() if each.get("parent") == model.name} == {
        "legal",
        "style",
    }
    assert listed["legal"]["details"]["rank"] == 4
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    for name in ("legal:pie", "legal"):
        extra = {"kvstitch": {"cold": "as_stored", "fusion": {"method": "pie"}}}
        answer = client.chat.completions.create(
            model=name, messages=asked, max_tokens=16, extra_body=extra
        )
        assert answer.choices[0].message.content == expected and answer.model == name
        assert answer.model_extra is not None
        assert answer.model_extra["kvstitch"]["adapter"] == "legal"
    with pytest.raises(openai.NotFoundError, match=f"{model.name}, legal, style, also as"):
        client.chat.completions.create(model="legalese", messages=asked)


def test_a_key_is_bound_to_its_adapter(adapted: Service, keys: dict[str, str], model: Path) -> None:
    expected = ask(adapted, "legal")["text"]
    bound = {"Authorization": f"Bearer {keys['bound']}"}
    with httpx.Client(base_url=adapted.http.base_url, headers=bound, timeout=60) as http:

        def post(path: str = "/v1/rag/generate", **fields: Any) -> httpx.Response:
            wanted = {"fusion": {"method": "pie"}, "max_tokens": 16, "cold": "as_stored"}
            return http.post(path, json={"question": QUESTION, **wanted, **fields})

        answer = post().json()
        assert answer["text"] == expected and answer["adapter"] == "legal"
        assert post(explain=True).json()["adapter"] == "legal"
        refused = post(adapter="style")
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "adapter_not_allowed"
        # Clients must name a model: the base model's name leaves the choice to the key.
        chat = http.post(
            "/v1/chat/completions",
            json={"model": model.name, "messages": [{"role": "user", "content": "Hello?"}]},
        )
        assert chat.json()["kvstitch"]["adapter"] == "legal"
        names = {each["id"] for each in http.get("/v1/models").json()["data"]}
        assert "legal" in names and "style" not in names


def test_an_unknown_adapter_is_refused_with_the_names(adapted: Service) -> None:
    refused = adapted.post(QUESTION, adapter="contracts")
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert error["param"] == "adapter" and "this service has legal, style" in error["message"]


def test_the_command_line(
    adapted: Service, adapters: dict[str, Path], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--url", str(adapted.http.base_url), "--json"]
    key = ["--api-key", adapted.http.headers["Authorization"].removeprefix("Bearer ")]
    asked = ["ask", QUESTION, "--adapter", "style", "--max-tokens", "3", *url, *key]
    assert main(asked) == 0
    assert '"adapter": "style"' in capsys.readouterr().out
