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
from long_chat import BLOCK_SIZE, CONVERSATION, DEEPSEEK, LLAMA, PROMPT, together

from mini_vllm.attention import AttentionMetadata, PagedAttention
from mini_vllm.engine import DEFAULT_MODEL

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
Say = Callable[[str], None]
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 32
"""The shipped model's."""


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

    plan = SchedulerOutput.make_empty()
    plan.num_scheduled_tokens = {name: tokens for name, (_, _, tokens) in people.items()}
    plan.total_num_scheduled_tokens = sum(plan.num_scheduled_tokens.values())
    say(f"as they came:   {', '.join(f'{n} {t}' for n, t in plan.num_scheduled_tokens.items())}")
    # As TRITON_MLA, FLASHMLA and FLASH_ATTN_MLA ask; uniform: decodes are as long as the first.
    for threshold, uniform in ((1, True), (128, True), (512, False)):
        now = batch()
        reorder_batch_to_split_decodes_and_prefills(now, plan, threshold)
        lens = [plan.num_scheduled_tokens[name] for name in now.req_ids]
        starts = np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
        ours = AttentionMetadata(
            starts, np.array(lens, np.int32), np.zeros((4, 1), np.int32),
            np.zeros(sum(lens), np.int64), 16,
        )  # fmt: skip
        cut = split_decodes_and_prefills(_common(ours), threshold, require_uniform=uniform)
        say(f"threshold {threshold:4}{', uniform' * uniform}:  {', '.join(now.req_ids)}")
        decodes = f"{cut[0]} decodes with {cut[2]} rows"
        say(f"  cut into {decodes} and {cut[1]} prefills with {cut[3]} rows")


# --- grid ---


class _Launches:
    """A kernel that notes the grid it is launched with, and runs only where it is told to."""

    def __init__(self, kernel: Any, grids: list[Any]) -> None:
        self.kernel, self.grids = kernel, grids

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launched(*args: Any, **more: Any) -> None:
            self.grids.append((getattr(self.kernel, "__name__", "kernel"), grid, more))

        return launched


def grid(say: Say) -> None:
    """What vLLM's `unified_attention` launches, with Llama-3-8B's heads; and that both ways agree."""
    import torch
    from vllm.v1.attention.ops import triton_unified_attention as ops

    kernels = {name: getattr(ops, name) for name in ("kernel_unified_attention", "reduce_segments")}
    grids: list[Any] = []
    for name, kernel in kernels.items():
        setattr(ops, name, _Launches(kernel, grids))
    cases = {
        "Ida": [1],
        "16 like her": [1] * 16,
        "17 like her": [1] * 17,
        "Ida and Jon": [1, 4096],
        "Jon": [4096],
    }
    for name, lens in cases.items():
        grids.clear()
        _call(ops, lens, [4096] * len(lens), heads=32, kv_heads=8, head_size=128, run=False)
        (_, launched, given), *rest = grids
        tail = f", then {rest[0][0]} {rest[0][1]}" if rest else ""
        say(f"{name:12} {launched!s:14} tiles of {given['TILE_SIZE']} keys{tail}")
    for name, kernel in kernels.items():
        setattr(ops, name, kernel)
    results = [
        _call(ops, [1], [245], heads=HEADS, kv_heads=KV_HEADS, head_size=HEAD_SIZE, split=split)
        for split in (False, True)
    ]
    apart = (results[0] - results[1]).abs().max().item()
    assert 0 < apart < 1e-5
    assert not torch.equal(*results)
    say("245 keys, split and not: the same to five places, and not bit for bit")


def _call(
    ops: Any,
    lens: list[int],
    contexts: list[int],
    heads: int,
    kv_heads: int,
    head_size: int,
    split: bool = True,
    run: bool = True,
) -> Any:
    """Call `unified_attention` on random tensors, with the buffers for segments or without."""
    import torch

    draw = torch.Generator().manual_seed(0)
    blocks = sum(-(-context // 16) for context in contexts) if run else 1
    shape = (blocks, 16, kv_heads, head_size)
    dtype = torch.float32 if run else torch.float16
    key, value = (torch.randn(shape, generator=draw).to(dtype) for _ in range(2))
    query = torch.randn(sum(lens), heads, head_size, generator=draw).to(dtype)
    out = torch.empty_like(query)
    table = torch.arange(blocks, dtype=torch.int32)[None].expand(len(lens), -1).contiguous()
    buffers: dict[str, Any] = {}
    if split:
        part = (128 // kv_heads, heads, 16)
        buffers = {
            "seq_threshold_3D": 128 // kv_heads,
            "num_par_softmax_segments": 16,
            "softmax_segm_output": torch.empty(*part, head_size),
            "softmax_segm_max": torch.empty(part),
            "softmax_segm_expsum": torch.empty(part),
        }
    ops.unified_attention(
        q=query, k=key, v=value, out=out,
        cu_seqlens_q=torch.tensor(np.concatenate(([0], np.cumsum(lens))), dtype=torch.int32),
        max_seqlen_q=max(lens), seqused_k=torch.tensor(contexts, dtype=torch.int32),
        max_seqlen_k=max(contexts), softmax_scale=head_size**-0.5, causal=True,
        window_size=(-1, -1), block_table=table, softcap=0.0,
        q_descale=None, k_descale=None, v_descale=None, **buffers,
    )  # fmt: skip
    return out


# --- latent ---


def latent(say: Say) -> None:
    """The bytes of an MLA cache, and vLLM's MLA decode kernel against keys and values spelled out."""
    import torch
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    bits = {"block_size": 1, "dtype": torch.bfloat16}
    mla: Any = MLAAttentionSpec(num_kv_heads=1, head_size=576, **bits)
    full: Any = FullAttentionSpec(num_kv_heads=8, head_size=128, **bits)
    say(f"a token of one layer: {mla.page_size_bytes} bytes; Llama-3-8B {full.page_size_bytes}")
    assert (mla.page_size_bytes, full.page_size_bytes) == (DEEPSEEK.token_bytes, LLAMA.token_bytes)

    heads, lora, rope, nope, context = 16, 512, 64, 128, 100
    draw = torch.Generator().manual_seed(0)
    cache = torch.randn(7, 16, lora + rope, generator=draw)
    cache[..., :lora] *= 0.1
    w_uk = torch.randn(heads, nope, lora, generator=draw) * 0.1
    w_uv = torch.randn(heads, lora, nope, generator=draw) * 0.1
    query = torch.randn(heads, nope + rope, generator=draw) * 0.1
    scale = (nope + rope) ** -0.5
    # forward_mqa: the matrix at the query, one key of 576 numbers for all heads
    absorbed = torch.cat([torch.einsum("hn,hnl->hl", query[:, :nope], w_uk), query[:, nope:]], -1)
    splits = 4
    out, lse = torch.zeros(1, heads, lora), torch.zeros(1, heads)
    buffer = cache.unsqueeze(2)
    decode_attention_fwd(
        absorbed[None], buffer, buffer[..., :lora], out, lse,
        torch.arange(7, dtype=torch.int32)[None], torch.tensor([context], dtype=torch.int32),
        torch.empty(1, heads, splits, lora + 1), splits, scale, 16, is_mla=True,
    )  # fmt: skip
    mqa = torch.einsum("hl,hlv->hv", out[0], w_uv)
    # forward_mha: keys and values of all heads from the latents
    latents, roped = cache.flatten(0, 1)[:context].split([lora, rope], -1)
    keys = torch.cat(
        [torch.einsum("tl,hnl->thn", latents, w_uk), roped[:, None].expand(-1, heads, -1)], -1
    )
    values = torch.einsum("tl,hlv->thv", latents, w_uv)
    scores = torch.einsum("hd,thd->ht", query.double(), keys.double()) * scale
    mha = torch.einsum("ht,thv->hv", scores.softmax(-1), values.double())
    apart = (mqa.double() - mha).abs().max() / mha.abs().max()
    assert apart < 1e-4, apart
    say(
        f"{heads} heads, {context} keys, {splits} splits: latents as keys, and keys from latents, agree"
    )
    try:
        from vllm.platforms import current_platform
        from vllm.v1.attention.selector import AttentionSelectorConfig

        current_platform.get_attn_backend_cls(
            None, AttentionSelectorConfig(576, torch.float16, "auto", None, use_mla=True)
        )
    except NotImplementedError as error:
        say(f"asked for on a CPU: {error}")


# --- prefix ---


def prefix(say: Say) -> None:
    """vLLM's rule for cascade attention, asked; and its merge of prefix and rest in the interpreter."""
    import torch
    from vllm.v1.attention.backends.flash_attn import use_cascade_attention
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

    def asks(people: int, shared: int, rows: int = 1) -> str:
        says = use_cascade_attention(
            shared, np.array([rows] + [1] * (people - 1)), 32, 8, False, False, False, 108, 1
        )
        return "yes" if says else "no"

    for people, shared in ((10, 2048), (20, 2048), (20, 240), (7, 2048)):
        say(f"{people:2} people decode, {shared:4} tokens in common: {asks(people, shared)}")
    say(f"10 people, one of them Jon with 64 rows: {asks(10, 2048, 64)}")

    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(10, HEADS, 300, generator=draw)
    values = torch.randn(300, HEADS, HEAD_SIZE, generator=draw)

    def part(begin: int, end: int) -> tuple[Any, Any]:
        some = scores[..., begin:end]
        out = torch.einsum("thk,khd->thd", some.softmax(-1), values[begin:end])
        return out.contiguous(), some.logsumexp(
            -1
        ).T.contiguous()  # [rows, heads, D], [heads, rows]

    merged = torch.empty(10, HEADS, HEAD_SIZE)
    merge_attn_states(merged, *part(0, 256), *part(256, 300))
    apart = (merged - part(0, 300)[0]).abs().max()
    assert apart < 1e-5
    merged = "two results and their logarithms of sums, merged, are the whole"
    say(f"256 keys in common, 44 of one's own: {merged}")


TOPICS: dict[str, Callable[[Say], None]] = {"order": order, "told": told, "sorted": sorted_}
TOPICS |= {"grid": grid, "latent": latent, "prefix": prefix}


def main() -> None:
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    wanted = sys.argv[1:] or list(TOPICS)
    if unknown := set(wanted) - set(TOPICS):
        sys.exit(f"no topic {', '.join(sorted(unknown))}; there are {', '.join(TOPICS)}")
    for name in wanted:
        print(f"{name}, vLLM", flush=True)
        TOPICS[name](lambda line: print(f"  {line}", flush=True))


if __name__ == "__main__":
    main()
