"""The server with adapters: as models, loaded and unloaded while it runs, and bad ones."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from mini_vllm import LLM, EngineConfig, SamplingParams  # noqa: E402
from mini_vllm.config.engine import DEFAULT_MODEL  # noqa: E402
from mini_vllm.entrypoints.cli import main  # noqa: E402
from mini_vllm.entrypoints.openai.settings import LoRAModulePath  # noqa: E402
from mini_vllm.lora.request import LoRARequest  # noqa: E402
from tests.engine.helpers.engine.adapters import ask, write_adapter, write_five  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    MODEL_NAME,
    Answer,
    ServerHere,
    serve_here,
    serve_there,
)

SHIPPED = DEFAULT_MODEL.parent / "tiny-llama-lora"
TENANTS = {"ada": "snake", "bo": "telegram", "cy": "questions"}
PROMPT = "The KV cache is"
LONG = "The scheduler decides which requests run in a step, and the KV cache holds their keys. "
ALLOW = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


def load(server: Any, name: str, folder: Path | str, **more: Any) -> Answer:
    answer: Answer = server.send(
        "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder), **more}
    )
    return answer


def unload(server: Any, name: str) -> Answer:
    answer: Answer = server.send("/v1/unload_lora_adapter", {"lora_name": name})
    return answer


def texts(prompt: str, max_tokens: int = 24) -> dict[str | None, str]:
    """What each tenant's adapter says, and under None the base."""
    llm = LLM(enable_lora=True, max_loras=3)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    said = {}
    for number, name in enumerate([None, *TENANTS]):
        lora = LoRARequest(name, number, str(SHIPPED / TENANTS[name])) if name else None
        output = llm.generate(prompt, params, use_tqdm=False, lora_request=lora)[0]
        assert output.lora_request == lora
        said[name] = output.outputs[0].text
    return said


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerHere]:
    """One that may be told to load adapters, with room for three."""
    monkeypatch.setenv(ALLOW, "1")
    config = EngineConfig(enable_lora=True, max_loras=3)
    with serve_here(config, enable_prompt_tokens_details=True) as running:
        yield running
        running.check_unharmed()


@pytest.fixture
def tenants(server: ServerHere) -> ServerHere:
    for name, folder in TENANTS.items():
        assert load(server, name, SHIPPED / folder).status == 200
    return server


# -- OpenAI's client ------------------------------------------------------------------------------


def test_openais_client_sees_adapters_as_models(tenants: ServerHere) -> None:
    openai = pytest.importorskip("openai")
    said = texts(PROMPT)
    with openai.OpenAI(base_url=f"{tenants.url}/v1", api_key="none", max_retries=0) as client:
        cards = {card.id: card for card in client.models.list().data}
        assert list(cards)[:1] == [MODEL_NAME]
        assert list(cards)[-3:] == list(TENANTS)
        assert client.models.retrieve("ada").root == str(SHIPPED / "snake")
        for name in TENANTS:
            assert (cards[name].parent, cards[name].max_model_len) == (MODEL_NAME, None)
        assert cards[MODEL_NAME].parent is None
        for name in (None, *TENANTS):
            given = {
                "model": name or MODEL_NAME,
                "prompt": PROMPT,
                "temperature": 0,
                "max_tokens": 24,
            }
            whole = client.completions.create(**given)
            assert (whole.choices[0].text, whole.model) == (said[name], name or MODEL_NAME)
            chunks = list(client.completions.create(**given, stream=True))
            assert "".join(chunk.choices[0].text for chunk in chunks) == said[name]
            assert {chunk.model for chunk in chunks} == {name or MODEL_NAME}
        given = {
            "messages": [{"role": "user", "content": "What is a block?"}],
            "temperature": 0,
            "max_tokens": 16,
        }
        chats = {
            name: client.chat.completions.create(model=name, **given)
            for name in (MODEL_NAME, *TENANTS)
        }
        assert {name: chat.model for name, chat in chats.items()} == {name: name for name in chats}
        assert len({chat.choices[0].message.content for chat in chats.values()}) > 1
        chunks = list(client.chat.completions.create(model="bo", stream=True, **given))
        assert {chunk.model for chunk in chunks} == {"bo"}
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks)
            == chats["bo"].choices[0].message.content
        )
        with pytest.raises(openai.NotFoundError, match="The model `dan` does not exist"):
            client.completions.create(model="dan", prompt="a")


def test_requests_of_all_tenants_run_in_the_same_steps(tenants: ServerHere) -> None:
    said = texts(PROMPT)
    steps: list[set[str | None]] = []
    core = tenants.engine.engine_core
    core.step_observers.append(
        lambda record: steps.append(
            {r.lora_request and r.lora_request.lora_name for r in core.scheduler.running}
        )
    )
    names = [None, *TENANTS] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        answers = pool.map(
            lambda name: tenants.complete(model=name or MODEL_NAME, prompt=PROMPT, max_tokens=24),
            names,
        )
        for name, answer in zip(names, answers, strict=True):
            assert answer.json["choices"][0]["text"] == said[name]
    assert {None, *TENANTS} in steps


def test_a_search_by_beams_goes_by_the_adapter(tenants: ServerHere) -> None:
    given = {"prompt": PROMPT, "max_tokens": 8, "n": 2, "use_beam_search": True}
    found = {
        name: tenants.complete(model=name, **given).json["choices"][0]["text"]
        for name in (MODEL_NAME, *TENANTS)
    }
    assert len(set(found.values())) > 1


def test_each_tenant_finds_its_own_prefix_only(tenants: ServerHere) -> None:
    def cached(name: str) -> int:
        usage = tenants.complete(model=name, prompt=LONG, max_tokens=1).json["usage"]
        details = usage["prompt_tokens_details"]
        return details["cached_tokens"] if details else 0

    names = (MODEL_NAME, *TENANTS)
    assert [cached(name) for name in names] == [0] * 4
    assert all(cached(name) > 0 for name in names)
    assert unload(tenants, "ada").status == 200
    assert load(tenants, "ada", SHIPPED / "snake").status == 200
    assert cached("ada") > 0, "the same weights: their KV is as it was"
    assert load(tenants, "ada", SHIPPED / "telegram", load_inplace=True).status == 200
    assert cached("ada") == 0, "another adapter under its name"


# -- loading and unloading ------------------------------------------------------------------------


def test_statuses_and_messages_are_vllms(server: ServerHere) -> None:
    folder = SHIPPED / "snake"
    answer = load(server, "ada", folder)
    assert (answer.status, answer.body) == (200, b"Success: LoRA adapter 'ada' added successfully.")
    answer = load(server, "ada", folder)
    assert (answer.status, answer.error["type"]) == (400, "InvalidUserInput")
    assert answer.error["message"].startswith(
        "The lora adapter 'ada' has already been loaded. If you"
    )
    assert load(server, "ada", folder, load_inplace=True).status == 200
    for name, path in (("", folder), ("x", "")):
        answer = load(server, name, path)
        assert (answer.status, answer.error["message"], answer.error["type"]) == (
            400, "Both 'lora_name' and 'lora_path' must be provided.", "InvalidUserInput",
        )  # fmt: skip
    answer = load(server, "x", "nowhere")
    assert (answer.status, answer.error["type"]) == (404, "NotFoundError")
    assert answer.error["message"] == "Loading lora x failed: No adapter found for nowhere"
    answer = unload(server, "ada")
    assert answer.body == b"Success: LoRA adapter 'ada' removed successfully."
    answer = unload(server, "ada")
    assert (answer.status, answer.error["type"]) == (404, "NotFoundError")
    assert answer.error["message"] == "The lora adapter 'ada' cannot be found."
    answer = unload(server, "")
    assert (answer.status, answer.error["type"]) == (400, "InvalidUserInput")
    assert (
        server.complete(model="ada", prompt="a").error["message"]
        == "The model `ada` does not exist."
    )


def test_what_is_missing_or_wrong_in_a_body_is_a_400(server: ServerHere) -> None:
    for body in ({}, {"lora_name": "x"}, {"lora_name": 3, "lora_path": "y"}, {"lora_path": "y"}):
        assert server.send("/v1/load_lora_adapter", body).status == 400
    answer = server.send("/v1/unload_lora_adapter", {"lora_name": ["x"]})
    assert (answer.status, answer.error["param"]) == (400, "lora_name")
    assert load(server, "x", SHIPPED / "snake", is_3d_lora_weight=True).status == 400
    for path in ("a\0b", "x" * 5000, "~", "."):
        assert load(server, "x", path).status in (400, 404)
    assert "name of the base model" in load(server, MODEL_NAME, SHIPPED / "snake").error["message"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"r": 64}, "LoRA rank 64 is greater than max_lora_rank 16"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
    ],
)
def test_a_bad_adapter_is_named_and_neighbours_go_on(
    tenants: ServerHere, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    said = texts(PROMPT)
    folder = write_adapter(tmp_path / "bad", 1)
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    (folder / "adapter_config.json").write_text(json.dumps(config | settings), encoding="utf-8")
    answers: list[Answer] = []
    neighbour = threading.Thread(
        target=lambda: answers.append(tenants.complete(model="bo", prompt=PROMPT, max_tokens=24))
    )
    neighbour.start()
    answer = load(tenants, "dan", folder)
    neighbour.join()
    assert (answer.status, answer.error["type"]) == (400, "BadRequestError")
    assert says in answer.error["message"]
    assert "dan" in answer.error["message"]
    assert answers[0].json["choices"][0]["text"] == said["bo"]
    assert tenants.complete(model="dan", prompt="a").status == 404
    answer = load(tenants, "ada", folder, load_inplace=True)
    assert answer.status == 400
    whole = tenants.complete(model="ada", prompt=PROMPT, max_tokens=24)
    assert whole.json["choices"][0]["text"] == said["ada"], "the one before is still there"


def test_an_adapter_that_left_memory_is_read_again_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ALLOW, "true")
    folders = write_five(tmp_path)
    with serve_here(EngineConfig(enable_lora=True, max_cpu_loras=2)) as server:
        loras = server.engine.input_processor.loras
        assert loras is not None
        for folder in folders[:3]:
            assert load(server, folder.name, folder).status == 200
        assert (loras.num_loads, server.engine.list_loras()) == (3, {2, 3})
        readers = []
        read = loras.load
        monkeypatch.setattr(
            loras,
            "load",
            lambda lora: (readers.append(threading.current_thread().name), read(lora))[1],
        )
        for name, loads in (("ad3", 3), ("ad1", 4), ("ad3", 4), ("ad2", 5)):
            assert server.complete(model=name, prompt="a", max_tokens=2).status == 200
            assert loras.num_loads == loads, name
        where = [name.startswith("mini-vllm-bodies") for name in readers]
        assert where == [False, True, False, True], "the loop waits for no file"
        shutil.rmtree(folders[0])
        answer = server.complete(model="ad1", prompt="a", max_tokens=2)
        assert (answer.status, answer.error["param"]) == (400, "model")
        assert "ad1" in answer.error["message"]
        server.check_unharmed()


def test_a_request_under_way_goes_on_when_its_adapter_is_unloaded_or_replaced(
    tenants: ServerHere,
) -> None:
    llm = LLM(enable_lora=True)
    params = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    lora = ask(SHIPPED / "snake", 1, "ada")
    wanted = llm.generate(PROMPT, params, use_tqdm=False, lora_request=lora)[0].outputs[0].text
    for change in (
        lambda: load(tenants, "ada", SHIPPED / "telegram", load_inplace=True),
        lambda: unload(tenants, "ada"),
    ):
        assert load(tenants, "ada", SHIPPED / "snake", load_inplace=True).status == 200
        given = {"model": "ada", "prompt": PROMPT, "max_tokens": 300, "ignore_eos": True}
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(tenants.complete, **given)
            tenants.wait_until(lambda: tenants.engine.has_unfinished_requests(), "it runs")
            assert change().status == 200
            assert not running.done()
            assert running.result().json["choices"][0]["text"] == wanted


def test_loading_waits_for_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW, raising=False)
    modules = (LoRAModulePath("ada", str(SHIPPED / "snake"), "noors-model"),)
    config = EngineConfig(enable_lora=True)
    with serve_here(
        config, lora_modules=modules, served_model_names=("tiny", "noors-model")
    ) as server:
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            answer = server.send(path, {"lora_name": "ada", "lora_path": "x"})
            assert answer.status == 404
            assert ALLOW in answer.error["message"]
            assert path not in server.send("/openapi.json").json["paths"]
        cards = server.send("/v1/models").json["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [
            ("tiny", None), ("noors-model", None), ("ada", "noors-model"),
        ]  # fmt: skip
        assert server.complete(model="ada", prompt="a", max_tokens=2).json["model"] == "ada"


def test_a_server_without_adapters_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW, "1")
    with serve_here() as server:
        answer = load(server, "ada", SHIPPED / "snake")
        assert (answer.status, "--enable-lora" in answer.error["message"]) == (400, True)
        assert "vllm:lora_requests_info" not in server.send("/metrics").body.decode()


# -- the command, the metric ----------------------------------------------------------------------


def test_the_command_takes_vllms_flags() -> None:
    as_json = json.dumps({"name": "bo", "path": str(SHIPPED / "telegram"), "base_model_name": "x"})
    flags = ("--enable-lora", "--max-loras", "2", "--max-cpu-loras", "4", "--max-lora-rank", "16")
    with serve_there(*flags, "--lora-modules", f"ada={SHIPPED / 'snake'}", as_json) as server:
        cards = server.send("/v1/models").json["data"]
        assert [(card["id"], card["parent"]) for card in cards[-2:]] == [
            ("ada", MODEL_NAME), ("bo", MODEL_NAME),
        ]  # fmt: skip
        answer = server.complete(model="bo", prompt=PROMPT, max_tokens=24)
        assert answer.json["choices"][0]["text"] == texts(PROMPT)["bo"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--lora-modules", "ada"], "must be NAME=DIR or a JSON object"),
        (["--lora-modules", '{"name": "ada"}'], "path is missing"),
        (["--lora-modules", '{"nmae": "ada"}'], "unknown key"),
        (["--lora-modules", '{"name": "ada", "path": 3}'], "path must be text"),
        (["--lora-modules", "ada=nowhere"], "LoRA is not enabled"),
        (["--enable-lora", "--lora-modules", "ada=nowhere"], "nowhere is no folder"),
        (["--enable-lora", "--lora-modules", "tiny-llama=x"], "name of the base model"),
        (["--enable-lora", "--max-lora-rank", "7"], "invalid choice"),
        (
            ["--enable-lora", "--max-loras", "3", "--max-cpu-loras", "2"],
            "max_cpu_loras (2) must be",
        ),
        (["--enable-lora", "-dp", "2"], "does not go with data_parallel_size 2"),
    ],
)
def test_a_bad_flag_ends_the_command_with_one_line(
    flags: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):  # of the parser
        assert main(["serve", "--port", "0", *flags]) != 0
    assert says in " ".join(capfd.readouterr().err.split())


def test_the_metric_names_the_adapters_that_had_requests_at_the_same_time(
    tenants: ServerHere,
) -> None:
    """As vLLM has it: both labels name every adapter with a request that has had a token."""

    def states() -> list[tuple[str, str]]:
        samples = [
            name for name in tenants.metrics() if name.startswith("vllm:lora_requests_info{")
        ]
        labels = [dict(part.split("=") for part in name[24:-1].split('",')) for name in samples]
        assert {label["max_lora"].strip('"') for label in labels} <= {"3"}
        both = [(x["waiting_lora_adapters"], x["running_lora_adapters"]) for x in labels]
        return [(waiting.strip('"'), running.strip('"')) for waiting, running in both]

    assert states() == []
    assert tenants.complete(model="ada", prompt="a", max_tokens=4).status == 200
    tenants.wait_idle()
    assert states() == [("ada", "ada"), ("", "")]
    tenants.complete(prompt="a", max_tokens=4)
    assert states() == [("ada", "ada"), ("", "")]
    given = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: tenants.complete(model=name, **given), ("bo", "cy")))
    assert {",".join(sorted(state[0].split(","))) for state in states()} >= {"bo,cy", ""}
