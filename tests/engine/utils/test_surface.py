"""What vLLM has and the miniature has not: one list, one voice, checked against the installed vLLM."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any

import pytest

import mini_vllm
from course.parity.tokens_run import run_worker
from mini_vllm import LLM, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from mini_vllm.config.speculative import METHODS, SpeculativeConfig
from mini_vllm.entrypoints.cli.flags import add_engine_flags
from mini_vllm.entrypoints.cli.serve import add_serve_arguments
from mini_vllm.sampling_params import PARAMETERS
from mini_vllm.utils.surface import ANY, entries, find_endpoint, groups, is_harmless, refusal

VOICE = "vLLM 0.22.1 has this; mini_vllm has not, because "
FORMER_ARGUMENTS = {"swap_space"}  # a keyword that vLLM's LLM still takes, and ignores
OUR_ENDPOINTS = {
    "POST /v1/completions", "POST /v1/chat/completions", "POST /v1/completions/render",
    "POST /v1/chat/completions/render", "GET /v1/models", "GET /health", "GET /ping", "POST /ping",
    "GET /version", "GET /metrics", "POST /tokenize", "POST /detokenize",
    "POST /reset_prefix_cache", "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter",
}  # fmt: skip
OUR_GENERATE = {
    "add_generation_prompt", "arrival_time", "chat_template", "chat_template_kwargs",
    "continue_final_message", "lora_request", "messages", "params", "priority", "prompt", "prompts",
    "request_id", "sampling_params", "tools", "use_tqdm",
}  # fmt: skip


# -- the voice ------------------------------------------------------------------------------------


def test_every_reason_ends_the_sentence() -> None:
    assert len(groups()) > 15
    for name, group in groups().items():
        because = group["because"]
        assert because, name
        assert not because.endswith("."), because
        assert because[0].islower(), because
    sentence = refusal("arguments", "nnodes", "nnodes=2")
    assert sentence == (
        "nnodes=2: vLLM 0.22.1 has this; mini_vllm has not, because its ranks are processes of "
        "one machine that share each layer or follow each other. It takes 1."
    )
    assert refusal("arguments", "nonsense") is None


def test_no_name_has_two_reasons() -> None:
    for kind in ("arguments", "flags", "fields", "LLM", "AsyncLLM", "LLMEngine", "SamplingParams"):
        names = [name for group in groups().values() for name in group.get(kind, ())]
        assert len(names) == len(set(names)), kind


def test_true_is_no_1() -> None:
    assert is_harmless("arguments", "nnodes", 1)
    assert not is_harmless("arguments", "nnodes", True)
    assert is_harmless("arguments", "gpu_memory_utilization", 0.5)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"nnodes": 2}, "nnodes=2: " + VOICE),
        ({"quantization": "fp8"}, "quantization='fp8': " + VOICE + "it computes in float32"),
        (
            {"lora_dtype": "float16"},
            "lora_dtype='float16': " + VOICE + "its adapters are for linear",
        ),
        ({"tokenizer": "elsewhere"}, "tokenizer='elsewhere': " + VOICE),
    ],
)
def test_arguments_that_ask_for_more_are_refused(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="because") as caught:
        EngineArgs(**kwargs)
    assert says in str(caught.value)
    with pytest.raises(ValueError, match="because") as caught:
        LLM(**kwargs)
    assert says in str(caught.value)


def test_an_argument_that_nobody_has_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"'blok_size'.*block_size"):
        EngineArgs(blok_size=16)


def test_methods_and_exports_that_are_missing_say_why() -> None:
    engine = LLMEngine()
    with pytest.raises(AttributeError, match="LLMEngine.pin_lora: " + VOICE):
        engine.pin_lora(1)  # type: ignore[attr-defined]
    assert not hasattr(engine, "sleep")
    with pytest.raises(AttributeError, match="'LLMEngine' object has no attribute 'nonsense'"):
        engine.nonsense  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"LLM\.encode: " + VOICE):
        LLM().encode("x")  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="PoolingParams: " + VOICE):
        from mini_vllm import PoolingParams  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(mini_vllm, "nonsense")


def test_arguments_of_calls_pass_as_none_and_no_other() -> None:
    llm = LLM()
    params = SamplingParams(temperature=0, max_tokens=1)
    llm.generate("a", params, use_tqdm=False, lora_request=None, tokenization_kwargs={})
    for call in (llm.generate, llm.enqueue):
        with pytest.raises(ValueError, match="tokenization_kwargs=1: " + VOICE):
            call("a", params, tokenization_kwargs=1)
    with pytest.raises(TypeError, match="'nonsense'"):
        llm.generate("a", params, nonsense=None)
    with pytest.raises(ValueError, match="multi_modal_data: " + VOICE):
        llm.generate({"prompt": "a", "multi_modal_data": {"image": 1}}, params)  # type: ignore[arg-type]
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-dpa", "elsewhere"], "-dpa elsewhere: " + VOICE),
        (["--lora-dtype", "float16"], "--lora-dtype float16: " + VOICE),
        (["--grpc"], "--grpc: " + VOICE),
        (["--allowed-origins", "*"], "must be a JSON list of strings"),
        (["--calculate-kv-scales"], "--calculate-kv-scales: " + VOICE),
    ],
)
def test_flags_that_ask_for_more_are_refused(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(flags)
    assert ended.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_flags_that_change_nothing_are_taken() -> None:
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    flags = (
        "folder --dtype float32 -tp 1 --trust-remote-code --enforce-eager --no-enable-lora "
        "--gpu-memory-utilization=0.5 --disable-log-stats --seed 3 --max-logprobs 5 "
        "--num-gpu-blocks-override 40"
    )
    args = parser.parse_args(flags.split())
    assert (args.model_tag, args.engine_seed, args.max_logprobs) == ("folder", 3, 5)
    assert args.num_gpu_blocks == 40
    assert "--dtype" not in parser.format_help()


def test_a_missing_endpoint_is_found_by_its_path() -> None:
    assert find_endpoint("/v1/responses/abc/cancel") == (
        "POST /v1/responses/{response_id}/cancel: " + VOICE + "it speaks OpenAI's completions and "
        "chat, nothing else."
    )
    assert find_endpoint("/v1/nonsense") is None


@pytest.mark.parametrize(
    ("key", "harmless", "refused"),
    [
        ("quantization", None, "fp8"),
        ("draft_tensor_parallel_size", 1, 2),
        ("tensor_parallel_size", None, 1),
        ("disable_padded_drafter_batch", False, True),
        ("parallel_drafting", False, True),
        ("attention_backend", "auto", "FLASH_ATTN"),
        ("revision", None, "main"),
    ],
)
def test_keys_of_speculation_pass_where_they_change_nothing(
    key: str, harmless: object, refused: object
) -> None:
    """`enforce_eager` and what belongs to other methods may say anything."""
    spec = {"method": "ngram", "num_speculative_tokens": 3, "enforce_eager": True}
    spec |= {"suffix_decoding_max_tree_depth": 7, key: harmless}
    config = EngineArgs(speculative_config=spec).create_engine_config()
    assert config.speculation is not None
    assert config.speculation.method == "ngram"
    with pytest.raises(ValueError, match=f"speculative_config: {key}=.*because"):
        EngineArgs(speculative_config=spec | {key: refused}).create_engine_config()


# -- against the installed vLLM -------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    found: dict[str, Any] = run_worker("tests.engine.helpers.real_vllm.vllm_surface", [], None)
    assert found["version"].startswith("0.22.1")
    return found


def _check(kind: str, theirs: set[str], ours: set[str], listed: set[str]) -> None:
    """Each of vLLM's names is here or on the list, never both; the list has no other."""
    assert not theirs - ours - listed, f"{kind}: neither here nor on the list"
    assert not listed - theirs, f"{kind}: on the list, but vLLM has them not"
    assert not ours & listed, f"{kind}: here, and on the list"


@pytest.mark.vllm
def test_arguments(theirs: dict[str, Any]) -> None:
    ours = {field.name for field in dataclasses.fields(EngineArgs)}
    ours |= {"chat_template"}  # of LLM
    listed = entries("arguments")
    _check("arguments", set(theirs["arguments"]), ours, set(listed) - FORMER_ARGUMENTS)
    for name, default in theirs["arguments"].items():
        if name in listed and default:
            assert is_harmless("arguments", name, default[0]), f"{name}={default[0]!r} is refused"


@pytest.mark.vllm
def test_keys_and_methods_of_speculation(theirs: dict[str, Any]) -> None:
    ours = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    _check("speculative", set(theirs["speculative"]), ours, set(entries("speculative")))
    for name, default in theirs["speculative"].items():
        if name not in ours and default:
            assert is_harmless("speculative", name, default[0]), f"{name}={default[0]!r} is refused"
    _check("methods", set(theirs["methods"]), set(METHODS), set(entries("methods")))


@pytest.mark.vllm
def test_flags(theirs: dict[str, Any]) -> None:
    bare = argparse.ArgumentParser(add_help=False)
    add_serve_arguments(bare)
    actions = [a for a in bare._actions if a.help is not argparse.SUPPRESS]
    ours = {name for action in actions for name in action.option_strings}
    known = {name for action in bare._actions for name in action.option_strings}
    missing = set(theirs["flags"]) - known - {"-h", "--help"}
    assert not missing, f"neither here nor on the list: {missing}"
    listed = set(entries("flags")) | {a for g in groups().values() for a in g.get("aliases", ())}
    assert not listed - set(theirs["flags"])
    assert not listed & ours
    engine_flags = argparse.ArgumentParser(add_help=False)
    add_engine_flags(engine_flags)
    assert {"--block-size", "--max-model-len"} <= set(engine_flags._option_string_actions)


@pytest.mark.vllm
def test_methods(theirs: dict[str, Any]) -> None:
    for name, kind in (("LLM", LLM), ("LLMEngine", LLMEngine), ("AsyncLLM", AsyncLLM)):
        ours = {member for member in dir(kind) if not member.startswith("_")}
        ours |= {"tokenizer"}  # an attribute, no property
        _check(name, set(theirs[name]), ours & set(theirs[name]), set(entries(name)))


@pytest.mark.vllm
def test_parameters_of_calls(theirs: dict[str, Any]) -> None:
    given = set(theirs["generate"])
    missing = given - OUR_GENERATE - set(entries("generate"))
    assert not missing, missing
    assert set(entries("generate")) <= given
    for call in (LLM.generate, LLM.chat, LLMEngine.add_request):
        known = set(inspect.signature(call).parameters)
        assert known - {"self", "unused"} <= OUR_GENERATE | set(entries("generate"))


@pytest.mark.vllm
def test_sampling_parameters_and_fields(theirs: dict[str, Any]) -> None:
    pytest.importorskip("fastapi")
    from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest

    listed = entries("SamplingParams")
    _check("SamplingParams", set(theirs["SamplingParams"]), set(PARAMETERS), set(listed))
    fields = set(entries("fields"))
    both = set(theirs["completion fields"]) | set(theirs["chat fields"])
    assert not fields - both, "on the list, but vLLM has them not"
    assert not set(entries("former")) & both, "vLLM has them still"
    for model, names in (
        (CompletionRequest, theirs["completion fields"]),
        (ChatCompletionRequest, theirs["chat fields"]),
    ):
        assert not set(names) - set(model.model_fields) - fields
        assert not set(model.model_fields) & fields


@pytest.mark.vllm
def test_endpoints_and_exports(theirs: dict[str, Any]) -> None:
    _check("endpoints", set(theirs["endpoints"]), OUR_ENDPOINTS, set(entries("endpoints")))
    _check("exports", set(theirs["exports"]), set(mini_vllm.__all__), set(entries("exports")))


def test_our_endpoints_are_those_of_the_server() -> None:
    for package in ("fastapi", "prometheus_client", "prometheus_fastapi_instrumentator", "jinja2"):
        pytest.importorskip(package)
    from mini_vllm.entrypoints.openai.app import build_app
    from mini_vllm.entrypoints.openai.settings import ServerSettings

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        llm = AsyncLLM()
        try:
            paths = build_app(llm, ServerSettings()).openapi()["paths"]
        finally:
            llm.shutdown()
    found = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
    assert found == OUR_ENDPOINTS | {"GET /v1/models/{name}"}
    assert ANY == "any"
