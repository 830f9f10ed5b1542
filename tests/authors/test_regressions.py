"""What a review against the source found: each line was once wrong, or crashed the engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.request import Request
from mini_vllm.core.sched.request_queue import PriorityRequestQueue
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.entrypoints.cli.errors import EPILOG
from tests.engine.helpers.engine.engine_helpers import make_engine, random_model, run

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def test_min_tokens_that_the_model_length_cannot_hold_is_refused() -> None:
    engine = make_engine(max_model_len=32)
    params = SamplingParams(temperature=0, max_tokens=9, min_tokens=5)
    with pytest.raises(ValueError, match=r"min_tokens \(5\) after a prompt of 31 tokens"):
        engine.add_request("long", [3] * 31, params)
    assert run(engine, [[3, 4]], GREEDY)[0], "the others must go on"


def test_a_step_that_fails_leaves_a_dead_engine_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    engine.add_request("a", [3, 4, 5], GREEDY)

    def fail(*args: object) -> np.ndarray:
        raise FloatingPointError("the model broke")

    monkeypatch.setattr(engine.model, "forward", fail)
    with pytest.raises(FloatingPointError, match="the model broke"):
        engine.step()
    with pytest.raises(EngineDeadError, match="the model broke"):
        engine.step()


def test_an_added_token_without_an_embedding_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEFAULT_MODEL, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    extra = tokenizer["added_tokens"][0] | {"id": 264, "content": "<extra>"}
    tokenizer["added_tokens"].append(extra)
    tokenizer["model"]["vocab"]["<extra>"] = 264
    path.write_text(json.dumps(tokenizer))
    llm = LLM(folder)
    with pytest.raises(ValueError, match="Token id 264 is out of vocabulary"):
        llm.generate("a<extra>b", GREEDY, use_tqdm=False)
    assert llm.generate("a block", GREEDY, use_tqdm=False)[0].finished


def test_default_parameters_come_from_the_generation_config(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEFAULT_MODEL, folder)
    path = folder / "generation_config.json"
    own = {"temperature": 0.5, "top_k": 3, "max_new_tokens": 7, "repetition_penalty": 1.3}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    params = LLM(folder).get_default_sampling_params()
    assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 3, 7)
    assert params.repetition_penalty == 1.3
    assert LLM().get_default_sampling_params().max_tokens == 16


def test_a_tokenizers_length_does_not_limit_a_model_that_generates(tmp_path: Path) -> None:
    """vLLM asks `model_max_length` of models that pool only (vllm-project/vllm pull 20322)."""
    folder = tmp_path / "model"
    shutil.copytree(DEFAULT_MODEL, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 100}))
    assert LLM(folder).llm_engine.config.max_model_len == 1024
    assert LLM(folder, max_model_len=200).llm_engine.config.max_model_len == 200
    with pytest.raises(ValueError, match=r"max_model_len \(1025\)"):
        LLM(folder, max_model_len=1025)


@pytest.mark.parametrize(
    "prompt", [{"prompt_token_ids": "abc"}, {"prompt": [9, 10]}, {"prompt": b"x"}, 7, None]
)
def test_a_prompt_of_the_wrong_type_is_a_type_error(prompt: object) -> None:
    with pytest.raises(TypeError, match="prompt"):
        LLM().llm_engine.add_request("x", prompt, GREEDY)  # type: ignore[arg-type]


def test_a_left_stream_does_not_abort_the_next_owner_of_its_id() -> None:
    engine = make_engine()
    first = engine.stream([3, 4], GREEDY, "0")
    next(iter(first))
    engine.abort_request("0")
    engine.add_request("0", [5, 6], GREEDY)
    first.close()  # type: ignore[attr-defined]
    tokens = [o.outputs[0].token_ids for _ in range(5) for o in engine.step()]
    assert len(tokens[-1]) == 5


def test_aborted_requests_do_not_pile_up_in_the_priority_heap() -> None:
    queue = PriorityRequestQueue()
    queue.add_request(Request("stays", [3], GREEDY, arrival_time=0.0, priority=0))
    for i in range(2000):
        request = Request(f"r{i}", [3], GREEDY, arrival_time=1.0 + i, priority=1)
        queue.add_request(request)
        queue.remove_request(request)
    assert len(queue._heap) < 50
    assert queue.pop_request().request_id == "stays"


def test_the_helps_examples_run(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "prompts.txt").write_text("The free queue\nA hash\n")
    (tmp_path / "mini_vllm").symlink_to(root / "mini_vllm")  # the shipped checkpoint, by its path
    lines = [line.strip() for line in EPILOG.splitlines() if line.startswith("  mini-vllm")]
    lines = [line for line in lines if "--mine" not in line]  # needs a learner's labs
    assert len(lines) >= 5
    environment = os.environ | {"PYTHONPATH": str(root)}
    for line in lines:
        command = line.replace("mini-vllm", f"{sys.executable} -m mini_vllm.entrypoints.cli", 1)
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout, line


def test_a_model_of_one_block_pool_is_refused_with_the_reason() -> None:
    engine = make_engine(random_model(), num_gpu_blocks=3, block_size=4)
    with pytest.raises(ValueError, match="it could wait for ever"):
        engine.add_request("big", [3] * 9, GREEDY)
