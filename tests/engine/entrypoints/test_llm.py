"""`LLM.generate`: the forms a prompt can take, the order of results, and the same fields as vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from course.parity.tokens_run import run_worker
from mini_vllm import LLM, RequestOutputKind, SamplingParams
from mini_vllm.engine.arg_utils import engine_config
from tests.engine.helpers.engine.text_helpers import (
    BOS,
    EOS,
    FIRST_BYTE,
    WIDE,
    check_no_leak,
    greedy,
    ids_of,
    write_checkpoint,
)
from tests.engine.helpers.real_vllm.same_script import Call, play

NINE = greedy(9, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(folder, num_gpu_blocks=64, max_num_seqs=16)


def texts(outputs: list[Any]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


# -- prompts and parameters -----------------------------------------------------------------------


def test_every_form_of_a_prompt_is_the_same_prompt(llm: LLM) -> None:
    ids = [BOS, *ids_of("Hello")]
    forms: list[Any] = [
        "Hello",
        ids,
        tuple(ids),
        {"prompt": "Hello"},
        {"prompt_token_ids": ids},
        {"prompt": "Hello", "prompt_token_ids": ids},
        {"prompt_token_ids": np.array(ids)},
        {"prompt": "Hello", "cache_salt": "pepper"},
    ]
    expected = texts(llm.generate("Hello", NINE))
    for form in forms:
        assert texts(llm.generate(form, NINE)) == expected, form
    assert texts(llm.generate(forms, NINE)) == expected * len(forms)


def test_a_list_of_integers_is_one_prompt_and_a_list_of_lists_many(llm: LLM) -> None:
    assert len(llm.generate([BOS, 70, 71], NINE)) == 1
    assert len(llm.generate([[BOS, 70], [71]], NINE)) == 2
    assert llm.generate([], NINE) == []


def test_one_parameter_set_for_all_or_one_each(llm: LLM) -> None:
    prompts = ["a", "b", "c"]
    each = [greedy(count, ignore_eos=True) for count in (3, 1, 7)]
    counts = [len(output.outputs[0].token_ids) for output in llm.generate(prompts, each)]
    assert counts == [3, 1, 7]
    counts = [len(output.outputs[0].token_ids) for output in llm.generate(prompts, NINE)]
    assert counts == [9, 9, 9]


def test_no_parameters_mean_the_defaults(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    bias = SamplingParams(ignore_eos=True)
    (output,) = llm.generate("abc", bias)
    assert len(output.outputs[0].token_ids) == 16
    assert len(llm.generate("abc")[0].outputs[0].token_ids) <= 16


def test_the_callers_parameters_stay_as_they_were(llm: LLM) -> None:
    params = greedy(4, stop=["x"])
    before = params.clone()
    llm.generate(["a", "b"], params)
    assert params == before
    assert params.output_kind is RequestOutputKind.CUMULATIVE


def test_lengths_that_differ_are_refused(llm: LLM) -> None:
    for params in ([NINE], [NINE] * 3):
        with pytest.raises(ValueError, match=r"prompts \(2\)"):
            llm.generate(["a", "b"], params)
    with pytest.raises(ValueError, match=r"prompts \(2\).*priority \(1\)"):
        llm.generate(["a", "b"], NINE, priority=[1])


def test_an_empty_list_of_parameters_does_not_mean_the_defaults(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"prompts \(2\).*\(0\)"):
        llm.generate(["a", "b"], [])


def test_results_stand_in_the_order_of_the_prompts(llm: LLM) -> None:
    """The shortest ends first; ids go past 9, so that an order by text would show."""
    prompts = [f"prompt {i}" for i in range(12)]
    params = [greedy(24 - 2 * i, ignore_eos=True) for i in range(12)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(24, 0, -2))
    again = llm.generate(prompts, params)
    ids = [int(output.request_id) for output in [*outputs, *again]]
    assert ids == sorted(set(ids)), "ids repeat from call to call"
    assert texts(again) == texts(outputs)


def test_only_finished_results_whatever_the_output_kind(llm: LLM) -> None:
    for kind in RequestOutputKind:
        outputs = llm.generate(["a", "b"], greedy(5, ignore_eos=True, output_kind=kind))
        assert [output.finished for output in outputs] == [True, True]
        assert [len(output.outputs[0].token_ids) for output in outputs] == [5, 5]


def test_a_bad_prompt_among_good_ones_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(ValueError, match="Token id 9999"):
        llm.generate([[BOS, 70], [9999], "c"], NINE)
    check_no_leak(llm.llm_engine)
    assert len(llm.generate("abc", NINE)) == 1


class Bar:
    """As much of tqdm as a caller may rely on."""

    made: ClassVar[list[Bar]] = []

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs, self.n, self.closed = kwargs, 0, False
        Bar.made.append(self)

    def update(self, count: int) -> None:
        self.n += count

    def close(self) -> None:
        self.closed = True


def test_progress_goes_to_the_callable_given(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    Bar.made.clear()
    llm.generate(["a", "b", "c"], NINE, use_tqdm=Bar)
    (bar,) = Bar.made
    assert bar.kwargs["total"] == 3
    assert (bar.n, bar.closed) == (3, True)
    llm.generate(["a", "b"], NINE, use_tqdm=False)
    assert len(Bar.made) == 1
    llm.generate(["a", "b"], NINE)  # standard error is no terminal here: nothing is drawn
    assert capsys.readouterr() == ("", "")


# -- the engine behind it -------------------------------------------------------------------------


def test_cached_tokens_are_counted_and_salts_keep_caches_apart(llm: LLM) -> None:
    long = "x" * 50  # 51 tokens with <bos>: 3 full blocks of 16

    def cached(prompt: Any) -> int | None:
        return llm.generate(prompt, NINE)[0].num_cached_tokens

    assert cached(long) == 0
    assert cached(long) == 48
    assert cached({"prompt": long, "cache_salt": "a"}) == 0, "a salted prompt read another's cache"
    assert cached({"prompt": long, "cache_salt": "a"}) == 48
    assert cached({"prompt": long, "cache_salt": "b"}) == 0, "two salts share a cache"
    assert cached("x" * 47) == 32, "the last token is always computed, so its block is no hit"
    assert cached("x" * 31 + "y" * 19) == 32
    assert llm.llm_engine.reset_prefix_cache()
    assert cached(long) == 0


def test_prefix_caching_off_caches_nothing(folder: Path) -> None:
    llm = LLM(folder, num_gpu_blocks=64, max_num_seqs=4, enable_prefix_caching=False)
    for _ in range(2):
        assert llm.generate("x" * 50, NINE)[0].num_cached_tokens == 0


def test_prompt_logprobs_read_no_cache(llm: LLM) -> None:
    params = greedy(2, prompt_logprobs=1)
    for _ in range(2):
        (output,) = llm.generate("x" * 50, params)
        assert output.num_cached_tokens == 0
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == 51


def test_priority_decides_who_runs_first(folder: Path) -> None:
    def finishing_order(policy: str) -> list[str | None]:
        llm = LLM(folder, num_gpu_blocks=64, max_num_seqs=1, scheduling_policy=policy)
        order: list[str | None] = []
        step = llm.llm_engine.step

        def watched() -> Any:
            outputs = step()
            order.extend(output.prompt for output in outputs if output.finished)
            return outputs

        llm.llm_engine.step = watched  # type: ignore[method-assign]
        llm.generate(["low", "high", "middle"], NINE, priority=[5, -1, 0])
        return order

    assert finishing_order("priority") == ["high", "middle", "low"]
    assert finishing_order("fcfs") == ["low", "high", "middle"]


def test_vllms_arguments_that_change_nothing_are_taken() -> None:
    config = engine_config(
        dtype="float32",
        enforce_eager=True,
        tensor_parallel_size=1,
        gpu_memory_utilization=0.5,
        num_gpu_blocks_override=77,
        max_model_len=64,
    )
    assert (config.num_gpu_blocks, config.max_model_len) == (77, 64)


@pytest.mark.parametrize(
    ("argument", "error", "says"),
    [
        ({"nnodes": 2}, ValueError, "nnodes=2"),
        ({"dtype": "bfloat16"}, ValueError, "dtype='bfloat16'"),
        ({"quantization": "fp8"}, ValueError, "quantization='fp8'"),
        ({"blok_size": 16}, TypeError, "blok_size"),
    ],
)
def test_vllms_arguments_that_would_change_something_are_refused(
    argument: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        engine_config(**argument)


# -- the same script through vLLM -----------------------------------------------------------------

SETTINGS = {
    "block_size": 16,
    "num_gpu_blocks_override": 200,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
}


def _script(model: str) -> dict[str, Call]:
    """Calls by name. Stop conditions are cut from what the model says without any."""
    base = {"temperature": 0, "max_tokens": 24}

    def call(prompts: Any, **params: Any) -> Call:
        return {"prompts": prompts, "params": base | params}

    ((first,),) = play("mini_vllm", model, SETTINGS, [call("Hello", ignore_eos=True)])
    text, ids = first["outputs"][0]["text"], first["outputs"][0]["token_ids"]
    long = "Hello" * 10
    cut_off = [BOS, *ids_of("n"), *ids_of("é")[:1]]  # ends in the middle of a character
    return {
        "logprobs": call(["Hello", long, "héllo"], logprobs=3),
        "once more, from the cache": call(["Hello", long, "héllo"], logprobs=3),
        "prompt logprobs, chunked": call("héllo wörld € " * 6, prompt_logprobs=2, logprobs=0),
        "prompt logprobs 0": call("ab", prompt_logprobs=0, logprobs=1),
        "prompt logprobs of one token": call({"prompt_token_ids": [9]}, prompt_logprobs=1),
        "stop": call("Hello", stop=text[7:10]),
        "stop, included": call("Hello", stop=text[7:10], include_stop_str_in_output=True),
        "several stops": call("Hello", stop=["zzzz", text[12:15], text[5:9]], logprobs=1),
        "stop inside min_tokens": call("Hello", stop=[text[3]], min_tokens=8),
        "stop token": call("Hello", stop_token_ids=[ids[9]]),
        "stop token, included": call(
            "Hello", stop_token_ids=[ids[9]], include_stop_str_in_output=True
        ),
        "stop token inside min_tokens": call("Hello", stop_token_ids=[ids[2]], min_tokens=8),
        "eos": call("Hello", logit_bias={EOS: 100.0}),
        "ignore_eos": call("Hello", logit_bias={EOS: 100.0}, ignore_eos=True),
        "min_tokens": call("Hello", logit_bias={EOS: 100.0}, min_tokens=5, logprobs=2),
        "eos as text": call(
            "Hello",
            logit_bias={EOS: 100.0},
            include_stop_str_in_output=True,
            skip_special_tokens=False,
        ),
        "special token": call("Hello", logit_bias={3: 100.0}, skip_special_tokens=False),
        "special token, skipped": call("Hello", logit_bias={3: 100.0}),
        "no text": call("Hello", detokenize=False, logprobs=1),
        "n": {
            "prompts": long,
            "params": {
                "n": 3,
                "temperature": 1.0,
                "allowed_token_ids": [65],  # one choice: the engines' random streams differ
                "max_tokens": 5,
                "logprobs": 1,
            },
        },
        "penalties": call(
            "Hello",
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=0.5,
            logprobs=2,
        ),
        "salt": call([{"prompt": long, "cache_salt": "x"}, {"prompt": long}]),
        "salt again": call([{"prompt": long, "cache_salt": "x"}, {"prompt": long}]),
        "to max_model_len": call("Hello", max_tokens=None, ignore_eos=True),
        "one token of room": call({"prompt_token_ids": [9] * 511}, max_tokens=9, ignore_eos=True),
        "params each": {
            "prompts": ["a", "b"],
            "params": [base | {"max_tokens": 3}, base | {"max_tokens": 5, "logprobs": 0}],
        },
        "no prompt at all": call([]),
        "logprobs of a split character": call(
            {"prompt_token_ids": cut_off},
            logit_bias={FIRST_BYTE + 0xA9: 50.0},
            max_tokens=2,
            logprobs=1,
            prompt_logprobs=1,
            detokenize=False,
        ),
    }


def _close(ours: Any, theirs: Any, where: str) -> list[str]:
    """Where two plain answers differ; floats may by 1e-3, request ids count from their own start."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return [] if abs(ours - theirs) < 1e-3 else [f"{where}: {ours} and {theirs}"]
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted((ours.keys() | theirs.keys()) - {"request_id"})
        return [d for k in keys for d in _close(ours.get(k), theirs.get(k), f"{where}.{k}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [d for i, (a, b) in pairs for d in _close(a, b, f"{where}[{i}]")]
    return [] if ours == theirs else [f"{where}: {ours!r:.200} and {theirs!r:.200}"]


@pytest.mark.vllm
def test_the_same_script_through_vllm_gives_the_same_fields(tmp_path: Path) -> None:
    model = str(write_checkpoint(tmp_path / "wide", WIDE, scale=0.15))
    script = _script(model)
    calls = list(script.values())
    mini = json.loads(json.dumps(play("mini_vllm", model, SETTINGS, calls)))
    job = {"model": model, "settings": SETTINGS, "calls": calls}
    real = run_worker("tests.engine.helpers.real_vllm.same_script", ["vllm"], job)
    differences = []
    for name, ours, theirs in zip(script, mini, real, strict=True):
        assert not isinstance(theirs, dict), f"vLLM refused {name!r}: {theirs}"
        differences += _close(ours, theirs, name)
    assert not differences, "mini_vllm and vLLM differ:\n" + "\n".join(differences)
