"""The forward pass under graphs: a step is padded, asks how it runs, and runs so.

Mirrors what `vllm/v1/worker/gpu_model_runner.py` does around the model's forward pass: the padding in
`execute_model`, `_get_slot_mappings` and `_build_attention_metadata`, and `capture_model` at the start. It is
used where `EngineConfig.cudagraph_mode` asks for graphs; `model_runner.py` knows nothing of them.

What is captured is captured here, before the first request. A step that fits no graph runs kernel by kernel.
Logits and sampling come after every graph: rows are picked from the hidden states first, so that rows of
padding never reach the LM head. With drafts a decoding request has one token and its drafts, so a graph of
decodes has as many a request. A drafter's own passes run under no graph.

Left out: memory measured for graphs before the KV cache is sized, several streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_interface import KVCacheConfig
from mini_vllm.cudagraph.dispatcher import CudagraphDispatcher, is_uniform_decode
from mini_vllm.cudagraph.graph import (
    Array,
    GraphPool,
    GraphRunner,
    LaunchCounter,
    PiecewiseGraphRunner,
    Values,
)
from mini_vllm.cudagraph.modes import (
    BatchDescriptor,
    CUDAGraphMode,
    adjust_cudagraph_sizes_for_spec_decode,
    cudagraph_capture_sizes,
)
from mini_vllm.cudagraph.program import build_program
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.outputs import CUDAGraphStat
from mini_vllm.utils.math import cdiv
from mini_vllm.worker.forward import Ints, NumpyForward

PAD_SLOT_ID = -1
NULL_BLOCK_ID = 0


class StepDispatcher:
    """Asks the dispatcher how a step runs, for numpy's graphs and for torch's.

    Args:
        config: says the sizes to capture and how many drafts there are.
        mode: what attention can bear of `config.cudagraph_mode`.
        make_dispatcher: `(cudagraph_mode, capture_sizes, max_num_seqs)`, and with drafts
            `uniform_decode_query_len`, of which another's dispatcher need not know.

    Raises ValueError where the capture sizes cannot be used.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        mode: CUDAGraphMode,
        make_dispatcher: Callable[..., CudagraphDispatcher],
    ) -> None:
        self.uniform_decode_query_len = query_len = uniform_decode_query_len(config)
        sizes = cudagraph_capture_sizes(
            config.max_num_seqs,
            config.token_budget,
            cudagraph_capture_sizes=config.cudagraph_capture_sizes,
            uniform_decode_query_len=query_len,
        )
        # In whole requests, where FULL graphs hold decodes with drafts
        # (`vllm/config/compilation.py:1428 in CompilationConfig.resolve_cudagraph_mode_and_sizes`).
        if mode.decode_mode() is CUDAGraphMode.FULL:
            sizes = adjust_cudagraph_sizes_for_spec_decode(sizes, query_len)
        of_drafts = {} if query_len == 1 else {"uniform_decode_query_len": query_len}
        self.max_captured_tokens = max(sizes, default=0)
        self.dispatcher = make_dispatcher(mode, sizes, config.max_num_seqs, **of_drafts)

    def dispatch(
        self, num_tokens: int, attn_metadata: AttentionMetadata
    ) -> tuple[CUDAGraphMode, BatchDescriptor, int]:
        """How a step runs, its shape with padding, and how many requests attention sees in it: inside of a
        graph as many as at the capture, outside only real ones."""
        num_reqs = len(attn_metadata.seq_lens)
        uniform_decode = is_uniform_decode(
            attn_metadata.max_query_len, self.uniform_decode_query_len, num_tokens, num_reqs
        )
        mode, descriptor = self.dispatcher.dispatch(num_tokens, uniform_decode)
        padded_reqs = num_reqs if descriptor.num_reqs is None else descriptor.num_reqs
        return mode, descriptor, padded_reqs


def uniform_decode_query_len(config: ResolvedConfig) -> int:
    """Tokens of a decoding request in a step: one and its drafts
    (`vllm/v1/worker/gpu_model_runner.py:805 in GPUModelRunner.__init__`)."""
    return 1 + (config.speculation.num_spec_tokens if config.speculation else 0)


class NumpyGraphForward(NumpyForward):
    """The numpy model under graphs.

    Args:
        model, config, kv_cache_config: as for `NumpyForward`. numpy's attention may be inside of any graph,
            so the mode that `config` names is never lowered.
        graph_runner: what captures and replays, the whole model and each piece.
        cudagraph_dispatcher: what chooses; see `StepDispatcher`.

    Attributes:
        counter: every launch of the forward pass since the graphs were captured.
        stat: how the last step ran; it is in the step's `ModelRunnerOutput` too.

    Raises ValueError where the capture sizes cannot be used.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        config: ResolvedConfig,
        kv_cache_config: KVCacheConfig,
        graph_runner: Callable[..., GraphRunner] = GraphRunner,
        cudagraph_dispatcher: Callable[..., CudagraphDispatcher] = CudagraphDispatcher,
    ) -> None:
        super().__init__(model, config, kv_cache_config)
        rows = config.max_num_seqs
        mode = CUDAGraphMode[config.cudagraph_mode]
        self._steps = StepDispatcher(config, mode, cudagraph_dispatcher)
        self.dispatcher = self._steps.dispatcher
        # Where the inputs of every step with a graph lie, from the first capture on.
        max_captured_tokens = self._steps.max_captured_tokens
        max_blocks = cdiv(config.max_model_len, config.block_size)
        self.buffers: Values = {
            "input_ids": np.zeros(max_captured_tokens, np.int32),
            "positions": np.zeros(max_captured_tokens, np.int32),
            "slot_mapping": np.full(max_captured_tokens, PAD_SLOT_ID, np.int64),
            "query_start_loc": np.zeros(rows + 1, np.int32),
            "seq_lens": np.zeros(rows, np.int32),
            "block_table": np.zeros((rows, max_blocks), np.int32),  # the null block
        }
        self.caches: Values = {f"kv_cache.{i}": cache for i, cache in enumerate(self.kv_caches)}
        self.counter = LaunchCounter()
        self.pool = GraphPool()
        kernels = build_program(self.model, config.block_size)
        self.full = graph_runner(kernels, CUDAGraphMode.FULL, self.counter, self.pool)
        self.piecewise = PiecewiseGraphRunner(
            kernels, self.counter, self.pool, graph_runner=graph_runner
        )
        self.capture_model()

    def capture_model(self) -> None:
        """Record every graph that the dispatcher knows, the largest first; then capturing is closed
        (`vllm/v1/worker/gpu_model_runner.py:6373 GPUModelRunner.capture_model`)."""
        for mode, descs in self.dispatcher.get_capture_descs():
            for desc in descs:
                # A step of nothing but padding: no request, and no slot to write to.
                self._run(self._values(desc.num_tokens, desc.num_reqs or 0), mode, desc)
        self.counter.capturing_enabled = False
        self.counter.reset()

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # rows of padding hold anything
    def run(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> Array:
        """Hidden states of the step's tokens. They lie in the graph's memory, where the next step
        overwrites them."""
        md = attn_metadata
        num_tokens, num_reqs = len(input_ids), len(md.seq_lens)
        mode, desc, reqs = self._steps.dispatch(num_tokens, md)
        padded = desc.num_tokens
        if mode is CUDAGraphMode.NONE:  # as it is; nothing has to lie anywhere
            values = {"input_ids": input_ids, "positions": positions, **self.caches}
            for name in ("slot_mapping", "query_start_loc", "seq_lens", "block_table"):
                values[name] = getattr(md, name)
        else:
            b = self.buffers
            b["input_ids"][:num_tokens] = input_ids  # behind them stands what earlier steps left
            b["positions"][:num_tokens] = positions
            b["slot_mapping"][:num_tokens] = md.slot_mapping
            b["slot_mapping"][num_tokens:padded] = PAD_SLOT_ID
            b["query_start_loc"][: num_reqs + 1] = md.query_start_loc
            b["query_start_loc"][num_reqs + 1 : reqs + 1] = num_tokens
            b["seq_lens"][:num_reqs] = md.seq_lens
            b["seq_lens"][num_reqs:reqs] = 0
            b["block_table"][:num_reqs, : md.block_table.shape[1]] = md.block_table
            b["block_table"][num_reqs:reqs] = NULL_BLOCK_ID
            values = self._values(padded, reqs)

        before = self.counter.launches
        self._run(values, mode, desc)
        launches = self.counter.launches - before
        self.stat = CUDAGraphStat(num_tokens, padded, padded - num_tokens, str(mode), launches)
        if aux_hidden_states is not None:
            layers = sorted(set(self.model.aux_hidden_state_layers))
            aux_hidden_states += [values[f"aux_hidden_states.{i}"][:num_tokens] for i in layers]
        return values["normed"][:num_tokens]

    def _values(self, num_tokens: int, num_reqs: int) -> Values:
        """The buffers' first rows, as many as the step has with its padding, and the caches."""
        b = self.buffers
        per_token = {n: b[n][:num_tokens] for n in ("input_ids", "positions", "slot_mapping")}
        per_request = {n: b[n][:num_reqs] for n in ("seq_lens", "block_table")}
        query_start_loc = b["query_start_loc"][: num_reqs + 1]
        return {**per_token, **per_request, "query_start_loc": query_start_loc, **self.caches}

    def _run(self, values: Values, mode: CUDAGraphMode, desc: BatchDescriptor) -> None:
        """Upstream the wrapper of the whole model stands around those of the pieces, and each lets through
        what is not in its mode."""
        runner = self.full if mode is CUDAGraphMode.FULL else self.piecewise
        runner(values, mode, desc)
