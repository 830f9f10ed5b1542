"""CUDA graphs of the torch model: captured once at the start, replayed step after step.

Mirrors `vllm/compilation/cuda_graph.py:145 CUDAGraphWrapper` and, of the model runner,
`vllm/v1/worker/gpu_model_runner.py:6373 GPUModelRunner.capture_model`. Modes, ladder and dispatcher are
those of `mini_vllm/cudagraph/`. On a GPU the graphs are `torch.cuda.CUDAGraph`; on a CPU the recording
stand-in takes their place (`graph_standin`), and nothing else is different.

What a replay needs is spread over three places, as upstream. The runner keeps the buffers that never move
and pads what is in them. The dispatcher says which graph. A wrapper captures or replays what it is told.

Left out: an estimate of the graphs' memory before the KV cache is sized, a graph for each count of LoRA
adapters, graphs of a drafter's own passes, sampling inside of a graph.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mini_vllm import attention
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_interface import KVCacheConfig
from mini_vllm.cudagraph import (
    BatchDescriptor,
    CudagraphDispatcher,
    CUDAGraphMode,
    GraphRunner,
    resolve_cudagraph_mode,
)
from mini_vllm.gpu.backend import AttentionMetadata
from mini_vllm.gpu.forward import NULL_BLOCK_ID, PAD_SLOT_ID, TorchForward, unpack
from mini_vllm.gpu.graph_standin import graphs_for
from mini_vllm.gpu.llama import LlamaForCausalLM
from mini_vllm.gpu.split_llama import SplitLlama
from mini_vllm.gpu.weak_ref import weak_ref_tensors
from mini_vllm.outputs import CUDAGraphStat
from mini_vllm.utils.math import cdiv
from mini_vllm.worker.forward import Ints
from mini_vllm.worker.graph_forward import StepDispatcher, uniform_decode_query_len


@dataclass
class ForwardContext:
    """What the wrappers are told of a step (`vllm/forward_context.py:129 ForwardContext`).

    Attributes:
        cudagraph_runtime_mode: NONE, PIECEWISE or FULL: which wrappers capture or replay.
        batch_descriptor: under which key.
        capturing_enabled: whether a key without a graph may be captured. False after the start, so that no
            request ever waits for a capture
            (`vllm/compilation/monitor.py:90 validate_cudagraph_capturing_enabled`).
    """

    cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE
    batch_descriptor: BatchDescriptor | None = None
    capturing_enabled: bool = False

    @contextmanager
    def step(self, mode: CUDAGraphMode, descriptor: BatchDescriptor | None) -> Iterator[None]:
        """Run a step under this mode and key."""
        self.cudagraph_runtime_mode, self.batch_descriptor = mode, descriptor
        try:
            yield
        finally:
            self.cudagraph_runtime_mode, self.batch_descriptor = CUDAGraphMode.NONE, None


@dataclass
class CUDAGraphEntry:
    """One key's graph (`vllm/compilation/cuda_graph.py:128 CUDAGraphEntry`)."""

    cudagraph: Any
    output: Any
    input_addresses: list[int]


class CUDAGraphWrapper:
    """Captures a function once for each key, then replays it
    (`vllm/compilation/cuda_graph.py:145 CUDAGraphWrapper`).

    It chooses nothing: mode and key come from the context, and a mode that is not its own means that the
    function is simply called. It copies nothing: the caller's tensors must be where they were at capture.

    Args:
        runnable: called with tensors and anything else; the tensors stay where they are.
        runtime_mode: FULL or PIECEWISE, the mode in which this wrapper acts.
        context: what the step is.
        graphs: `graphs_for(device)`.
        pool: the memory pool, shared by all graphs of the model.
    """

    def __init__(
        self,
        runnable: Callable[..., Any],
        runtime_mode: CUDAGraphMode,
        context: ForwardContext,
        graphs: Any,
        pool: Any,
    ) -> None:
        if runtime_mode not in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE):
            raise ValueError(f"a wrapper is for FULL or PIECEWISE, got {runtime_mode}")
        self.runnable = runnable
        self.runtime_mode = runtime_mode
        self.context = context
        self.graphs = graphs
        self.graph_pool = pool
        self.entries: dict[BatchDescriptor, CUDAGraphEntry] = {}

    def __call__(self, *args: Any) -> Any:
        """Call, capture or replay. After a capture the result's numbers are not there yet.

        Raises ValueError for a key without a graph once capturing is over, and where an input has moved
        since the capture. Upstream looks only under `VLLM_LOGGING_LEVEL=DEBUG`, at pieces only.
        """
        context = self.context
        if context.cudagraph_runtime_mode is not self.runtime_mode:
            return self.runnable(*args)
        key = context.batch_descriptor
        assert key is not None
        addresses = [x.data_ptr() for x in tree_leaves(args) if isinstance(x, Tensor)]
        entry = self.entries.get(key)
        if entry is None:
            return self._capture(key, args, addresses)
        if addresses != entry.input_addresses:
            pairs = zip(addresses, entry.input_addresses, strict=False)
            moved = [i for i, (a, b) in enumerate(pairs) if a != b]
            raise ValueError(
                f"the graph of {key} was captured on other tensors: of its {len(entry.input_addresses)} "
                f"inputs, number {moved} has moved since, and a graph reads where it read at capture"
            )
        entry.cudagraph.replay()
        return entry.output

    def _capture(self, key: BatchDescriptor, args: tuple[Any, ...], addresses: list[int]) -> Any:
        if not self.context.capturing_enabled:
            raise ValueError(
                f"no {self.runtime_mode} graph was captured for {key}, and capturing is over"
            )
        cudagraph = self.graphs.CUDAGraph()
        with self.graphs.graph(cudagraph, pool=self.graph_pool):
            output = self.runnable(*args)
        self.entries[key] = CUDAGraphEntry(cudagraph, weak_ref_tensors(output), addresses)
        # The tensors themselves, so that the next piece's capture cannot be given their memory.
        return output


class GraphedLlama:
    """The model under graphs: whole for FULL, in pieces for PIECEWISE, as it is for NONE.

    Args:
        model: whose `forward` and pieces are captured.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model
        self.context = ForwardContext()
        self.graphs = graphs_for(model.device)
        self.graph_pool = self.graphs.graph_pool_handle()
        self.full = self._wrap(CUDAGraphMode.FULL, model.forward)
        self.split = SplitLlama(model, lambda piece: self._wrap(CUDAGraphMode.PIECEWISE, piece))

    def _wrap(self, mode: CUDAGraphMode, runnable: Callable[..., Any]) -> CUDAGraphWrapper:
        return CUDAGraphWrapper(runnable, mode, self.context, self.graphs, self.graph_pool)

    def capture(
        self,
        descs: list[tuple[CUDAGraphMode, list[BatchDescriptor]]],
        dummy_args: Callable[[CUDAGraphMode, BatchDescriptor], tuple[Any, ...]],
    ) -> int:
        """Warm up and capture every graph there will ever be
        (`vllm/v1/worker/gpu_model_runner.py:6498 GPUModelRunner._capture_cudagraphs`).

        Args:
            descs: from `CudagraphDispatcher.get_capture_descs`: pieces first, the largest first.
            dummy_args: the arguments of `forward` for a key, on the buffers that a step will use.

        Returns how many graphs that made: a key of PIECEWISE has one for each piece.
        """
        self.context.capturing_enabled = True
        # `torch.cuda.graph` collects garbage each time. What there is now need not be looked at again.
        gc.collect()
        gc.freeze()
        try:
            for mode, descriptors in descs:
                for descriptor in descriptors:
                    args = dummy_args(mode, descriptor)
                    # Once as it is: kernels are compiled and libraries find their memory before the capture.
                    with self.context.step(CUDAGraphMode.NONE, None):
                        self._function(mode)(*args)
                    self.graphs.synchronize()
                    self.forward(mode, descriptor, *args)
        finally:
            self.context.capturing_enabled = False
            gc.unfreeze()
        self.graphs.synchronize()
        wrappers: list[Any] = [self.full, *self.split.pieces]
        return sum(len(wrapper.entries) for wrapper in wrappers)

    def forward(
        self, mode: CUDAGraphMode, descriptor: BatchDescriptor | None, *args: Any
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """`LlamaForCausalLM.forward` on `args`, under this mode and key.

        The result of a graph is good up to the next replay of any of them.
        """
        with self.context.step(mode, descriptor):
            result: Tensor | tuple[Tensor, list[Tensor]] = self._function(mode)(*args)
        return result

    def _function(self, mode: CUDAGraphMode) -> Callable[..., Any]:
        return self.split.forward if mode is CUDAGraphMode.PIECEWISE else self.full


class TorchGraphForward(TorchForward):
    """`TorchForward` under graphs.

    Args:
        model, config, kv_cache_config: as for `TorchForward`. The mode that `config` names is lowered to
            what the model's attention can bear (`resolve_cudagraph_mode`), with a warning.
        graph_runner: numpy's; graphs of torch have a wrapper of their own.
        cudagraph_dispatcher: what chooses; see `StepDispatcher`.

    Attributes:
        stat: how the last step ran; it is in the step's `ModelRunnerOutput` too.
        num_graphs: how many were captured.

    Raises ValueError where mode or capture sizes cannot be used.
    """

    def __init__(
        self,
        model: Any,
        config: ResolvedConfig,
        kv_cache_config: KVCacheConfig,
        graph_runner: Callable[..., Any] = GraphRunner,
        cudagraph_dispatcher: Callable[..., CudagraphDispatcher] = CudagraphDispatcher,
    ) -> None:
        if graph_runner is not GraphRunner:
            raise ValueError(
                f"parts.graph_runner runs numpy's kernels, and attention={config.attention!r} has none: "
                "use attention='numpy', or leave the part out"
            )
        super().__init__(model, config, kv_cache_config)
        backend = model.attention
        mode = resolve_cudagraph_mode(
            CUDAGraphMode[config.cudagraph_mode],
            backend.cudagraph_support,
            min_cg_attn_backend=type(backend).__name__,
            uniform_decode_query_len=uniform_decode_query_len(config),
        )
        self._steps = StepDispatcher(config, mode, cudagraph_dispatcher)
        self.dispatcher = self._steps.dispatcher
        self._max_model_len = config.max_model_len
        self._max_blocks = cdiv(config.max_model_len, config.block_size)
        # All of a Llama's layers have the same.
        [self._sliding_window] = set(model.config.sliding_windows)
        self.graphed = GraphedLlama(model)
        self.num_graphs = 0
        self.capture_model()

    def capture_model(self) -> None:
        """Every graph that the dispatcher knows, before the first request comes."""
        with self.step():
            descs = self.dispatcher.get_capture_descs()
            self.num_graphs = self.graphed.capture(descs, self._dummy_args)

    def _dummy_args(self, mode: CUDAGraphMode, descriptor: BatchDescriptor) -> tuple[Any, ...]:
        """A step of no request, to warm up and to capture on
        (`vllm/v1/worker/gpu_model_runner.py:5538 GPUModelRunner._dummy_run`)."""
        n = descriptor.num_tokens
        ids = self.input_ids.copy_to_gpu(np.zeros(n, np.int32))
        places = self.positions.copy_to_gpu(np.zeros(n, np.int64))
        slots = self.slot_mapping.copy_to_gpu(np.full(n, PAD_SLOT_ID))
        if mode is CUDAGraphMode.PIECEWISE:  # attention stays outside
            return ids, places, self.kv_caches, None
        num_reqs, query_len = descriptor.num_reqs, self._steps.uniform_decode_query_len
        assert num_reqs is not None
        lens = np.full(num_reqs, n // num_reqs, np.int32)
        lens[: n % num_reqs] += 1
        null_blocks = np.full((num_reqs, self._max_blocks), NULL_BLOCK_ID, np.int32)
        metadata = AttentionMetadata(
            query_start_loc=self.query_start_loc.copy_to_gpu(np.append(0, lens.cumsum())),
            seq_lens=self.seq_lens.copy_to_gpu(lens),
            block_table=self.block_table.copy_to_gpu(null_blocks),
            slot_mapping=slots,
            # What the host says is recorded with the kernels, so it must be true of every replay.
            num_decodes=num_reqs if descriptor.uniform and query_len == 1 else 0,
            max_query_len=query_len if descriptor.uniform else n,
            max_seq_len=self._max_model_len,
            sliding_window=self._sliding_window,
        )
        return ids, places, self.kv_caches, metadata

    def run(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: attention.AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> Tensor:
        """Pad, copy, and start the model or its graph. The result's first rows are the step's."""
        num_tokens = len(input_ids)
        mode, descriptor, reqs = self._steps.dispatch(num_tokens, attn_metadata)
        padded = descriptor.num_tokens
        ids, places, metadata = self._copy_step(input_ids, positions, attn_metadata, padded, reqs)
        self.stat = CUDAGraphStat(num_tokens, padded, padded - num_tokens, str(mode), None)
        args = ids, places, self.kv_caches, metadata
        result = self.graphed.forward(mode, descriptor, *args)
        return unpack(result, num_tokens, aux_hidden_states)
