"""Lab 01-05 against real vLLM: the same ends, the same texts, on random streams."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).resolve().parents[2]
SOLUTION = ROOT / "phase-01-architecture" / "labs" / "lab-05-stop-conditions" / "solution.py"
EOS = 2


@pytest.fixture(scope="module")
def solution() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lab_01_05_solution", SOLUTION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_check_stop_on_random_streams(solution: ModuleType) -> None:
    """2,000 requests, token by token: the same answer, status and stop reason after each."""
    from vllm import SamplingParams as VllmParams
    from vllm.v1.core.sched.utils import check_stop
    from vllm.v1.request import Request as VllmRequest

    rng = random.Random(0)
    ends: dict[str, int] = {}
    for _ in range(2000):
        num_prompt_tokens, max_tokens = rng.randint(1, 4), rng.randint(1, 12)
        knobs: dict[str, Any] = {
            "max_tokens": max_tokens,
            "min_tokens": rng.choice([0, 0, rng.randint(0, max_tokens)]),
            "ignore_eos": rng.random() < 0.3,
            "stop_token_ids": rng.sample(range(8), rng.choice([0, 0, 1, 2])),
        }
        max_model_len = rng.randint(num_prompt_tokens + 1, 16)
        ours, theirs = SamplingParams(**knobs), VllmParams(**knobs)
        ours.update_from_generation_config({}, EOS)
        theirs.update_from_generation_config({}, EOS)
        mine = Request("r", [1] * num_prompt_tokens, ours)
        real = VllmRequest(
            request_id="r",
            prompt_token_ids=[1] * num_prompt_tokens,
            sampling_params=theirs,
            pooling_params=None,
        )
        for token_id in rng.choices(range(8), k=14):
            mine.append_output_token_ids(token_id)
            real.append_output_token_ids(token_id)
            want = check_stop(real, max_model_len)
            assert solution.check_stop(mine, max_model_len) == want
            assert (mine.status.name, mine.stop_reason) == (real.status.name, real.stop_reason)
            if want:
                reason = solution.finish_reason(mine.status)
                assert reason == str(real.get_finished_reason())
                ends[f"{reason} {real.stop_reason is None}"] = 1
                break
    assert ends.keys() == {"stop True", "stop False", "length True"}  # each way was taken


def test_finish_reasons(solution: ModuleType) -> None:
    """The words for the statuses that both have are vLLM's."""
    from vllm.v1.request import RequestStatus as VllmStatus

    for status in RequestStatus:
        if status in (RequestStatus.FINISHED_REPETITION, RequestStatus.FINISHED_ERROR):
            continue  # the lab leaves them out
        theirs = VllmStatus.get_finished_reason(VllmStatus[status.name])
        assert solution.finish_reason(status) == (None if theirs is None else str(theirs))


def test_stop_strings_on_random_streams(solution: ModuleType) -> None:
    """3,000 streams of pieces with 0 to 5 characters: found, text and what is shown, all equal."""
    from vllm import SamplingParams as VllmParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer

    class Scripted(BaseIncrementalDetokenizer):
        """vLLM's detokenizer, with the text of each token given beforehand."""

        texts: list[str]

        def decode_next(self, next_token_id: int) -> str:
            return self.texts[next_token_id]

    rng = random.Random(1)
    found = 0
    for _ in range(3000):
        letters = rng.choice(["ab", "abc"])
        stop = [
            "".join(rng.choices(letters, k=rng.randint(1, 5))) for _ in range(rng.randint(0, 3))
        ]
        include, min_tokens = rng.random() < 0.4, rng.choice([0, 0, 1, 4])
        texts = ["".join(rng.choices(letters, k=rng.choice([0, 1, 1, 2, 5]))) for _ in range(12)]
        params = VllmParams(
            stop=stop, include_stop_str_in_output=include, min_tokens=min_tokens, max_tokens=99
        )
        request = EngineCoreRequest(
            request_id="r",
            prompt_token_ids=[1],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        real = Scripted(request)
        real.texts = texts
        mine = solution.StopStringDetector(stop, include, min_tokens)
        for token_id, text in enumerate(texts):
            ended = rng.random() < 0.03
            want = real.update([token_id], ended)
            assert mine.update(text, ended) == want
            finished = want is not None or ended or token_id == len(texts) - 1
            assert mine.next_text(finished) == real.get_next_output_text(finished, delta=True)
            assert mine.output_text == real.output_text
            if finished:
                found += want is not None
                break
    assert found > 1000


def test_check_stop_strings_by_itself(solution: ModuleType) -> None:
    """vLLM's function on a text and its newest piece finds what the detector finds, and cuts there."""
    from vllm.v1.engine.detokenizer import check_stop_strings

    rng = random.Random(2)
    for _ in range(5000):
        stop = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        before = "".join(rng.choices("ab", k=rng.randint(0, 4)))
        piece = "".join(rng.choices("ab", k=rng.randint(0, 5)))
        include = rng.random() < 0.5
        mine = solution.StopStringDetector(stop, include, min_tokens=1)
        mine.update(before)  # within min_tokens: whatever is complete in it is barred
        got = mine.update(piece)
        want = check_stop_strings(before + piece, len(piece), stop, include)
        assert got == (None if want is None else want[0])
        cut = len(before + piece) if want is None or want[1] == -1 else want[1]
        assert mine.output_text == (before + piece)[:cut]


WANTS_EOS = """
import sys
import vllm
from vllm.v1.executor.uniproc_executor import UniProcExecutor
llm = vllm.LLM(
    sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=64, num_gpu_blocks_override=9,
    block_size=16, distributed_executor_backend=UniProcExecutor,
)
for knobs in ({}, {"min_tokens": 1}, {"min_tokens": 4}):
    params = vllm.SamplingParams(temperature=0, max_tokens=9, logit_bias={2: 100}, **knobs)
    [output] = llm.generate({"prompt_token_ids": [1, 89]}, params, use_tqdm=False)
    print("ENDED", len(output.outputs[0].token_ids), output.outputs[0].finish_reason)
"""


def test_eos_comes_after_min_tokens_at_the_soonest() -> None:
    """A model that wants nothing but EOS, through the whole of vLLM: token min_tokens + 1."""
    model = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama"
    quiet = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    printed = output_of("-c", WANTS_EOS, model, **quiet)
    ended = [line for line in printed.splitlines() if line.startswith("ENDED")]
    assert ended == ["ENDED 1 stop", "ENDED 2 stop", "ENDED 5 stop"]
