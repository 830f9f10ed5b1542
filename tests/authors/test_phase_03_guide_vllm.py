"""Phase 03's guide against real vLLM: the same steps for Eve, Fay, Gil and Hal, in every variant shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module
from course.parity.traces import Config

NOON = Path(__file__).resolve().parents[2] / "phase-03-scheduler" / "noon.py"
VARIANTS: dict[str, dict[str, Any]] = {
    "noon": {},
    "budget 64": {"max_num_batched_tokens": 64},
    "threshold 8": {"long_prefill_token_threshold": 8},
    "no caching": {"enable_prefix_caching": False},
    "eve last": {"policy": "priority", "priorities": {"eve": 5}},
}


@pytest.mark.vllm
@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_the_guides_runs_are_vllms(settings: dict[str, Any]) -> None:
    """Tokens, victims and tables of all steps, from vLLM's synchronous scheduler."""
    from course.parity.record import vllm_parts

    settings = dict(settings)
    noon: Any = load_module(NOON, "phase_03_noon")
    priorities = settings.pop("priorities", {})
    story = noon.with_priorities(**priorities) if priorities else noon.noon(**settings)
    config: Config = {
        "block_size": 4,
        "num_blocks": 20,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 16,
        "long_prefill_token_threshold": 0,
        "enable_prefix_caching": True,
        "max_model_len": 96,
        "policy": "fcfs",
    }
    parts = vllm_parts(config | settings)  # type: ignore[arg-type, operator]
    scheduler: Any = parts.scheduler
    living: dict[str, Any] = {}
    for step in story:
        for name in noon.PROMPTS:
            if noon.COMES[name] == step.index:
                asked = {"id": name, "step": 0, "prompt": noon.prompt_ids(name)}
                asked |= {"max_tokens": noon.WANTED[name], "ignore_eos": True, "abort": None}
                asked["priority"] = priorities.get(name, 0)
                living[name] = parts.make_request(asked, len(living))
                scheduler.add_request(living[name])
        plan = scheduler.schedule()
        ours = {part.request_id: part for part in step.scheduled}
        assert plan.num_scheduled_tokens == {
            name: part.num_scheduled_tokens for name, part in ours.items()
        }, f"step {step.index}"
        assert sorted(plan.preempted_req_ids or ()) == step.preempted, f"step {step.index}"
        for name, part in ours.items():
            assert parts.block_ids(name) == part.block_ids, f"step {step.index}, {name}"
        sampled = [ours[name].new_token_ids for name in plan.num_scheduled_tokens]
        output = parts.make_output(list(plan.num_scheduled_tokens), sampled)
        scheduler.update_from_output(plan, output)
    assert not scheduler.has_unfinished_requests()
