"""Published configurations, tiny and random, through `mini_vllm` and real vLLM in one process.

    python -m tests.engine.helpers.models.published_parity FOLDER lengths|tokens NAME ...

`lengths`: the longest text that each engine takes by default. `tokens`: greedy tokens, with chunked
prompts, prefix caching, and a pool so small that requests are preempted. What differs ends it with an error.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from course.parity.tokens import compare, report
from course.parity.tokens_run import Scenario, lift_the_fault, run_scenarios
from mini_vllm.core.kv_cache_groups import get_kv_cache_config
from mini_vllm.model_loader import load_config
from tests.engine.helpers.models.published_configs import PUBLISHED, write_tiny

TOLERANCE = 1e-3
"""Nats. Weights of this size make logits of some tens, and float32 rounds those to 1e-5 and worse."""


def make_scenario(num_groups: int) -> Scenario:
    """Prompts that begin alike, some longer than a window and than a step, and a pool for one or two."""
    rng = random.Random(1)
    shared = [rng.randrange(3, 260) for _ in range(48)]
    prompts = [
        shared + [rng.randrange(3, 260) for _ in range(size)] for size in (1, 9, 40, 75, 110)
    ]
    settings = {
        "max_model_len": 200,
        "max_num_batched_tokens": 64,
        "num_gpu_blocks_override": 17 * num_groups,
        "enable_prefix_caching": True,
    }
    to_the_end = {
        "temperature": 0,
        "ignore_eos": True,
    }  # so that the lengths ask for too many blocks
    return Scenario(
        "together", settings, prompts, [24] * len(prompts), sampling=[to_the_end] * len(prompts)
    )


def compare_tokens(names: list[str], folder: Path) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    lift_the_fault()
    preemptions, without_window = 0, 0
    for name in names:
        model = str(write_tiny(PUBLISHED[name], folder / name.replace(" ", "-")))
        config = load_config(model)
        without_window += not any(config.sliding_windows)  # a window gives blocks back
        groups = get_kv_cache_config(config, 16, 100).kv_cache_groups
        scenario = make_scenario(len(groups))
        [ours] = run_scenarios(model, [scenario], real=False)
        [theirs] = run_scenarios(model, [scenario], real=True)
        cleanup_dist_env_and_memory()  # of a mixture and of another model they are not the same
        found = compare(scenario, ours, theirs)
        print(f"{name}\n{report([found])}", flush=True)
        assert found.equal, name
        assert found.max_logprob_difference <= TOLERANCE, name
        preemptions += found.preemptions[0]
    assert preemptions or not without_window, "no request was preempted"


def compare_lengths(names: list[str], folder: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    for name in names:
        model = write_tiny(PUBLISHED[name], folder / name.replace(" ", "-"))
        theirs = EngineArgs(model=str(model), dtype="float32").create_model_config().max_model_len
        ours = load_config(model).default_max_model_len
        print(f"{name}: {ours} and {theirs}", flush=True)
        # Upstream takes longer texts and has no angles for them: see `config/rope.py stretch`.
        assert ours == theirs or (name == "a Llama 2 with dynamic NTK" and 2 * ours == theirs), name


if __name__ == "__main__":
    doors = {"lengths": compare_lengths, "tokens": compare_tokens}
    doors[sys.argv[2]](sys.argv[3:], Path(sys.argv[1]))
