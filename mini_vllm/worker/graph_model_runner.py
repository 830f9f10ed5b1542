"""The model runner under graphs: it pads a step, asks how it runs, and runs it so.

Mirrors what `vllm/v1/worker/gpu_model_runner.py` does around the model's forward pass: the padding in
`execute_model`, `_get_slot_mappings` and `_build_attention_metadata`, and `capture_model` at the start. It is
used where `EngineConfig.cudagraph_mode` asks for graphs; `model_runner.py` knows nothing of them.

What is captured is captured here, before the first request. A step that fits no graph runs kernel by kernel.
Logits and sampling come after every graph: rows are picked from the hidden states first, so that rows of
padding never reach the LM head.

Left out: memory measured for graphs before the KV cache is sized, several streams, drafts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.cudagraph.dispatcher import CudagraphDispatcher, is_uniform_decode
from mini_vllm.cudagraph.graph import (
    Array,
    GraphPool,
    GraphRunner,
    LaunchCounter,
    PiecewiseGraphRunner,
    Values,
)
from mini_vllm.cudagraph.modes import BatchDescriptor, CUDAGraphMode, cudagraph_capture_sizes
from mini_vllm.cudagraph.program import build_program
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.outputs import CUDAGraphStat
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker.model_runner import ModelRunner

PAD_SLOT_ID = -1
NULL_BLOCK_ID = 0


class GraphModelRunner(ModelRunner):
    """Executes steps under graphs.

    Args:
        model, config, sampler: as for `ModelRunner`. numpy's attention may be inside of any graph, so the
            mode that `config` names is never lowered.
        graph_runner: what captures and replays, the whole model and each piece.
        cudagraph_dispatcher: what chooses, `(cudagraph_mode, capture_sizes, max_num_seqs)`.

    Attributes:
        counter: every launch of the forward pass since the graphs were captured.
        stat: how the last step ran; it is in the step's `ModelRunnerOutput` too.

    Raises ValueError where the capture sizes cannot be used.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        config: EngineConfig,
        sampler: Sampler,
        graph_runner: Callable[..., GraphRunner] = GraphRunner,
        cudagraph_dispatcher: Callable[..., CudagraphDispatcher] = CudagraphDispatcher,
    ) -> None:
        super().__init__(model, config, sampler)
        mode = CUDAGraphMode[config.cudagraph_mode]
        budget, rows = config.token_budget, config.max_num_seqs
        sizes = cudagraph_capture_sizes(
            rows, budget, cudagraph_capture_sizes=config.cudagraph_capture_sizes
        )
        self.dispatcher = cudagraph_dispatcher(mode, sizes, rows)
        # Where the inputs of every step with a graph lie, from the first capture on.
        top = max(sizes, default=0)
        self.buffers: Values = {
            "input_ids": np.zeros(top, np.int32),
            "positions": np.zeros(top, np.int32),
            "slot_mapping": np.full(top, PAD_SLOT_ID, np.int64),
            "query_start_loc": np.zeros(rows + 1, np.int32),
            "seq_lens": np.zeros(rows, np.int32),
            "block_table": np.zeros_like(self.block_table),  # the null block
        }
        self.caches: Values = {f"kv_cache.{i}": cache for i, cache in enumerate(self.kv_caches)}
        self.counter = LaunchCounter()
        self.pool = GraphPool()
        kernels = build_program(self.model, self.block_size)
        self.full = graph_runner(kernels, CUDAGraphMode.FULL, self.counter, self.pool)
        self.piecewise = PiecewiseGraphRunner(
            kernels, self.counter, self.pool, graph_runner=graph_runner
        )
        self.stat: CUDAGraphStat | None = None
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

    def _execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self.stat = None
        result = super()._execute_model(scheduler_output)
        result.cudagraph_stats = self.stat
        return result

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # rows of padding hold anything
    def _model_forward(
        self, input_ids: np.ndarray, positions: np.ndarray, attn_metadata: AttentionMetadata
    ) -> Array:
        """Hidden states of the step's tokens. They lie in the graph's memory, where the next step
        overwrites them."""
        md = attn_metadata
        num_tokens, num_reqs = len(input_ids), len(md.seq_lens)
        uniform_decode = is_uniform_decode(md.max_query_len, 1, num_tokens, num_reqs)
        mode, desc = self.dispatcher.dispatch(num_tokens, uniform_decode)
        padded = desc.num_tokens
        # Inside of a graph attention sees as many requests as at the capture; outside only real ones.
        reqs = num_reqs if desc.num_reqs is None else desc.num_reqs

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
