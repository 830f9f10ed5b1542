"""What a preempted request leaves in the prefix cache. Belongs into `tests/v1/core/` of a vLLM tree.

`low` is given a chunk, and in the same call of `schedule()` `high` needs a block, so `low` is preempted.
Nobody computes that chunk. When `low` looks itself up again, it must find what was computed before, and
no more.
"""

import pytest
import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE, CHUNK = 2, 4
USABLE_BLOCKS = 8


def make_scheduler(scheduler_cls: type[Scheduler]) -> Scheduler:
    model_config = ModelConfig(model="facebook/opt-125m", dtype="float16", skip_tokenizer_init=True)
    num_blocks = USABLE_BLOCKS + 1  # the null block
    vllm_config = VllmConfig(
        model_config=model_config,
        scheduler_config=SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_model_len=64,
            is_encoder_decoder=False,
            long_prefill_token_threshold=CHUNK,
            policy="priority",
            async_scheduling=scheduler_cls is AsyncScheduler,
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True),
    )
    vllm_config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return scheduler_cls(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=BLOCK_SIZE,
    )


def make_request(request_id: str, num_tokens: int, priority: int) -> Request:
    init_none_hash(sha256)
    sampling_params = SamplingParams(max_tokens=4, ignore_eos=True)
    sampling_params.update_from_generation_config({}, 2)
    return Request(
        request_id=request_id,
        prompt_token_ids=[10 * priority + i for i in range(num_tokens)],
        sampling_params=sampling_params,
        pooling_params=None,
        arrival_time=float(priority == 0),
        priority=priority,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )


def step(scheduler: Scheduler) -> dict[str, int]:
    """One step, its results in at once. Returns how many tokens each request was given."""
    output = scheduler.schedule()
    ids = list(output.num_scheduled_tokens)
    # A prompt that is not over samples nothing.
    over = [
        scheduler.requests[i].num_computed_tokens >= scheduler.requests[i].num_tokens for i in ids
    ]
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[[7] if sampled else [] for sampled in over],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )
    return output.num_scheduled_tokens


@pytest.mark.parametrize("scheduler_cls", [Scheduler, AsyncScheduler])
def test_a_victim_finds_only_what_was_computed(scheduler_cls: type[Scheduler]) -> None:
    scheduler = make_scheduler(scheduler_cls)
    low = make_request("low", num_tokens=12, priority=5)
    scheduler.add_request(low)
    assert step(scheduler) == {"low": 4}
    scheduler.add_request(make_request("high", num_tokens=4, priority=0))
    assert step(scheduler) == {"low": 4, "high": 4}
    computed = low.num_computed_tokens

    assert step(scheduler) == {"high": 1}, "low was given 4 tokens and lost them in the same step"
    assert low.status == RequestStatus.PREEMPTED
    _, found = scheduler.kv_cache_manager.get_computed_blocks(low)
    assert found <= computed, f"{found} tokens found, {computed} computed"
