"""A step of Ida's and Jon's through vLLM's own attention code, for the deep dive. No GPU is needed.

    python phase-04-attention-backends/vllm_attention.py              all topics
    python phase-04-attention-backends/vllm_attention.py told grid    some

`told` loads the shipped model into vLLM's CPU build. The others call vLLM's layer, builders and functions
alone, and its Triton kernels in Triton's interpreter. Needs vLLM 0.22.1; its CPU build will do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from long_chat import BLOCK_SIZE, CONVERSATION, PROMPT, together
from vllm_kernels import HEAD_SIZE, HEADS, KV_HEADS, Say, grid, latent, prefix

from mini_vllm.attention import AttentionMetadata, PagedAttention
from mini_vllm.config.engine import DEFAULT_MODEL

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core in this process
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_COMPILE_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",  # Triton's interpreter, also where there is a GPU
    "TRITON_INTERPRET": "1",
}


def numbers(values: Any) -> str:
    """A list of numbers, shortened in the middle."""
    given = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(given) > 6:
        given = [*given[:3], "…", given[-1]]
    return " ".join(map(str, given))


# --- told ---


def told(say: Say) -> None:
    """What vLLM's runner tells the builders in the step in which Jon comes, next to mini_vllm's."""
    import vllm
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm: Any = vllm.LLM(
        str(DEFAULT_MODEL), dtype="float32", enforce_eager=True, block_size=BLOCK_SIZE,
        max_model_len=512, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    seen: list[Any] = []
    build = CPUAttentionMetadataBuilder.build

    def watched(self: Any, common_prefix_len: int, common_attn_metadata: Any) -> Any:
        seen.append(common_attn_metadata)
        return build(self, common_prefix_len, common_attn_metadata)

    CPUAttentionMetadataBuilder.build = watched  # type: ignore[method-assign]
    wanted = vllm.SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    engine = llm.llm_engine
    engine.add_request("ida", CONVERSATION, wanted)
    engine.step()
    engine.add_request("jon", PROMPT, wanted)
    seen.clear()
    engine.step()
    [common], ours = seen, together()[1]
    say(f"calls of build in the step: {len(seen)}, for {len(_layers(llm))} layers")
    for name in ("query_start_loc", "seq_lens", "slot_mapping"):
        theirs = getattr(common, name).numpy()
        assert (theirs == getattr(ours, name)).all(), name
        say(f"{name:18} {numbers(theirs)}")
    for name, row, seq_len in zip(
        ("ida", "jon"), common.block_table_tensor.tolist(), ours.seq_lens.tolist(), strict=True
    ):
        used = -(-seq_len // BLOCK_SIZE)
        say(f"{name}'s blocks       {numbers(row[:used])}")
    for name in ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len", "causal"):
        say(f"{name:18} {getattr(common, name)}")
    say(f"is_prefilling      {numbers(common.is_prefilling)}")


def _layers(llm: Any) -> Any:
    worker = llm.llm_engine.model_executor.driver_worker.worker
    return worker.model_runner.model.model.layers


# --- order ---


def _layer() -> tuple[Any, Any, Any]:
    """vLLM's `Attention` with the Triton backend, its metadata builder, and the configuration."""
    import torch
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # the cache writer asks
    config = VllmConfig(model_config=ModelConfig(model=str(DEFAULT_MODEL), dtype="float32"))
    with set_current_vllm_config(config):
        layer = Attention(
            HEADS, HEAD_SIZE, HEAD_SIZE**-0.5, KV_HEADS, prefix="layers.0.attn",
            attn_backend=TritonAttentionBackend,
        )  # fmt: skip
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=KV_HEADS, head_size=HEAD_SIZE, dtype=torch.float32
        )
        builder = TritonAttentionBackend.get_builder_cls()(
            spec, [layer.layer_name], config, torch.device("cpu")
        )
    shape = TritonAttentionBackend.get_kv_cache_shape(64, BLOCK_SIZE, KV_HEADS, HEAD_SIZE)
    layer.kv_cache = torch.zeros(shape)
    return layer, builder, config


def _common(ours: AttentionMetadata) -> Any:
    """vLLM's `CommonAttentionMetadata` with the numbers of ours."""
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.tensor(ours.query_start_loc)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(ours.seq_lens),
        num_reqs=len(ours.seq_lens),
        num_actual_tokens=len(ours.slot_mapping),
        max_query_len=ours.max_query_len,
        max_seq_len=ours.max_seq_len,
        block_table_tensor=torch.tensor(ours.block_table),
        slot_mapping=torch.tensor(ours.slot_mapping),
    )


def _step(ours: AttentionMetadata, seed: int = 0) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(seed)
    rows = len(ours.slot_mapping)
    shapes = ((rows, HEADS), (rows, KV_HEADS), (rows, KV_HEADS))
    query, key, value = (
        draw.standard_normal((*shape, HEAD_SIZE)).astype(np.float32) for shape in shapes
    )
    return query, key, value


def order(say: Say) -> None:
    """vLLM's layer, its two custom ops and its Triton backend, on Jon's step; which comes first?"""
    import torch
    from vllm.forward_context import set_forward_context

    layer, builder, config = _layer()
    ours = together()[1]
    query, key, value = _step(ours)
    metadata = builder.build(0, _common(ours))
    calls: list[str] = []
    for name in ("do_kv_cache_update", "forward"):
        _log(layer.impl, name, calls, layer)
    name = layer.layer_name
    with set_forward_context(
        {name: metadata}, config, slot_mapping={name: torch.tensor(ours.slot_mapping)}
    ):
        out = layer(*(torch.tensor(array).flatten(1) for array in (query, key, value)))
    for line in calls:
        say(line)
    cache = np.zeros(PagedAttention.get_kv_cache_shape(64, BLOCK_SIZE, KV_HEADS, HEAD_SIZE), "f4")
    expected = PagedAttention().forward(query, key, value, cache, ours)
    assert np.abs(out.numpy() - expected).max() < 1e-5
    say("37 rows, as mini_vllm's PagedAttention has them")
    schema = torch.ops.vllm.unified_attention_with_output.default._schema
    last = schema.arguments[-1]
    say(f"the second op's last argument: {last.name}, {last.type}")


def _log(impl: Any, name: str, calls: list[str], layer: Any) -> None:
    method = getattr(impl, name)

    def logged(*args: Any, **more: Any) -> Any:
        written = int(layer.kv_cache.abs().sum(dim=(1, 3, 4)).count_nonzero())
        calls.append(f"{type(impl).__name__}.{name}: {written} slots hold something")
        return method(*args, **more)

    setattr(impl, name, logged)


# --- sorted ---


def sorted_(say: Say) -> None:
    """vLLM's runner sorts a batch for a builder that wants decodes first, and cuts it once."""
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.v1.attention.backends.utils import (
        reorder_batch_to_split_decodes_and_prefills,
        split_decodes_and_prefills,
    )
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    # name: prompt, computed, in this step
    people = {"jon": (36, 0, 36), "kim": (300, 200, 64), "ida": (244, 250, 1), "lea": (65, 64, 1)}

    def batch() -> Any:
        made = InputBatch(8, 512, 512, torch.device("cpu"), False, 264, [16], [16])
        for name, (prompt, computed, _) in people.items():
            answer = [5] * max(0, computed + 1 - prompt)
            made.add_request(
                CachedRequestState(
                    name, [5] * prompt, [], SamplingParams(), None, ([1],), computed, answer
                )
            )
        return made

    scheduled = SchedulerOutput.make_empty()
    scheduled.num_scheduled_tokens = {name: tokens for name, (_, _, tokens) in people.items()}
    scheduled.total_num_scheduled_tokens = sum(scheduled.num_scheduled_tokens.values())
    say(
        f"as they came:   {', '.join(f'{n} {t}' for n, t in scheduled.num_scheduled_tokens.items())}"
    )
    # As FLASHINFER and FLASH_ATTN_MLA ask; uniform: decodes are as long as the first.
    for threshold, uniform in ((1, True), (512, False)):
        now = batch()
        reorder_batch_to_split_decodes_and_prefills(now, scheduled, threshold)
        lens = [scheduled.num_scheduled_tokens[name] for name in now.req_ids]
        starts = np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
        ours = AttentionMetadata(
            starts, np.array(lens, np.int32), np.zeros((4, 1), np.int32),
            np.zeros(sum(lens), np.int64), 16,
        )  # fmt: skip
        common = _common(ours)
        cut = split_decodes_and_prefills(common, threshold, require_uniform=uniform)
        say(f"threshold {threshold}:  {', '.join(now.req_ids)}")
        decodes = f"{cut[0]} decodes with {cut[2]} rows"
        say(f"    {decodes}, {cut[1]} prefills with {cut[3]}")


TOPICS: dict[str, Callable[[Say], None]] = {
    "order": order,
    "told": told,
    "sorted": sorted_,
    "grid": grid,
    "latent": latent,
    "prefix": prefix,
}


def main() -> None:
    os.environ |= SETTINGS
    wanted = sys.argv[1:] or list(TOPICS)
    if unknown := set(wanted) - set(TOPICS):
        sys.exit(f"no topic {', '.join(sorted(unknown))}; there are {', '.join(TOPICS)}")
    for name in wanted:
        print(f"{name}, vLLM", flush=True)
        TOPICS[name](lambda line: print(f"  {line}", flush=True))


if __name__ == "__main__":
    main()
