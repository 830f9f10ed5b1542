"""The model runner on a device: the plan in numpy on the host, the model in torch on the device.

Mirrors `vllm/v1/worker/gpu_model_runner.py:3668 GPUModelRunner._model_forward` and what stands around it.
`mini_vllm/model_runner.py` lays a step out in arrays. Here they are copied to tensors that stay where they
are from step to step, so that a CUDA graph, which remembers addresses, finds each step's numbers
where it looks. The logits come back, once a step, to the same sampler on the host.

Left out: sampling on the device; tokens that stay there for the next step, as upstream's do with
asynchronous scheduling (`vllm/v1/worker/gpu_model_runner.py:3591 in GPUModelRunner._bookkeeping_sync`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm import attention
from mini_vllm.config import EngineConfig
from mini_vllm.cudagraph import (
    BatchDescriptor,
    CudagraphDispatcher,
    CUDAGraphMode,
    cudagraph_capture_sizes,
    is_uniform_decode,
    resolve_cudagraph_mode,
)
from mini_vllm.gpu.backend import AttentionMetadata, count_decodes
from mini_vllm.gpu.cudagraph import GraphedLlama
from mini_vllm.gpu.split_llama import SplitLlama
from mini_vllm.model_runner import ModelRunner
from mini_vllm.sampler import Sampler
from mini_vllm.sched_output import ModelRunnerOutput, SchedulerOutput


class CpuGpuBuffer:
    """An array on the host and its copy on the device, made once
    (`vllm/v1/utils.py:109 CpuGpuBuffer`).

    The host's half is page-locked, so the device fetches it while the host goes on. On a CPU the two
    halves are one.
    """

    def __init__(self, *size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.cpu = torch.zeros(*size, dtype=dtype, pin_memory=device.type == "cuda")
        self.gpu = self.cpu if device.type == "cpu" else torch.zeros_like(self.cpu, device=device)
        self.np: NDArray[Any] = self.cpu.numpy()

    def copy_to_gpu(
        self, values: NDArray[Any], padded: int | None = None, padding: int = 0
    ) -> Tensor:
        """Put `values` at the buffer's start, on both sides, and `padding` into the rows up to `padded`.

        Returns the device's first `padded` rows, whole: of a table also the columns past `values`,
        which hold what earlier steps left there. `padded` is `len(values)` if it is None.
        """
        n = len(values) if padded is None else padded
        self.np[tuple(slice(size) for size in values.shape)] = values
        self.np[len(values) : n] = padding
        if self.gpu is not self.cpu:
            self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)
        return self.gpu[:n]


class GPUModelRunner(ModelRunner):
    """Executes steps on the model's device, which may be the CPU.

    Args:
        model: a `mini_vllm.gpu.llama.LlamaForCausalLM`.
        config, sampler: as for `ModelRunner`.

    Where the config asks for CUDA graphs, they are captured here, all of them
    (`cudagraph.py`; on a CPU they are the stand-in's).

    Raises ValueError if the KV cache is more than the device's memory.
    """

    model: Any

    def __init__(self, model: Any, config: EngineConfig, sampler: Sampler) -> None:
        super().__init__(model, config, sampler)
        self.device: torch.device = model.device
        rows, max_blocks = self.block_table.shape

        def buffer(*size: int, dtype: torch.dtype) -> CpuGpuBuffer:
            return CpuGpuBuffer(*size, dtype=dtype, device=self.device)

        self.input_ids = buffer(config.token_budget, dtype=torch.int32)
        self.positions = buffer(config.token_budget, dtype=torch.int64)
        self.slot_mapping = buffer(config.token_budget, dtype=torch.int64)
        self.query_start_loc = buffer(rows + 1, dtype=torch.int32)
        self.seq_lens = buffer(rows, dtype=torch.int32)
        self.block_tables = buffer(rows, max_blocks, dtype=torch.int32)
        on_gpu = self.device.type == "cuda"
        self.prepare_inputs_event = torch.cuda.Event() if on_gpu else None
        # As for numpy: small products gain nothing by more threads (`mini_vllm/blas.py`).
        self._one_thread = self._one_blas_thread and not on_gpu
        self._max_model_len = config.max_model_len
        self._initialize_cudagraphs(config)

    def _initialize_cudagraphs(self, config: EngineConfig) -> None:
        """Choose mode and ladder, and capture (`vllm/v1/worker/gpu_model_runner.py:6373
        GPUModelRunner.capture_model`)."""
        support = self.model.attention.cudagraph_support
        mode = resolve_cudagraph_mode(
            CUDAGraphMode[config.cudagraph_mode],
            support,
            min_cg_attn_backend=type(self.model.attention).__name__,
        )
        sizes: list[int] = []
        if mode:
            sizes = cudagraph_capture_sizes(
                config.max_num_seqs,
                config.token_budget,
                cudagraph_capture_sizes=config.cudagraph_capture_sizes,
            )
        self.dispatcher = CudagraphDispatcher(mode, sizes, config.max_num_seqs)
        self.graphed = GraphedLlama(self.model, SplitLlama)
        with torch.inference_mode():
            self.captured = self.graphed.capture(
                self.dispatcher.get_capture_descs(), self._dummy_args
            )

    def _dummy_args(self, mode: CUDAGraphMode, descriptor: BatchDescriptor) -> tuple[Any, ...]:
        """A step of nobody, to warm up and to capture on (`vllm/v1/worker/gpu_model_runner.py:5538
        GPUModelRunner._dummy_run`)."""
        n = descriptor.num_tokens
        ids = self.input_ids.copy_to_gpu(np.zeros(n, np.int32))
        places = self.positions.copy_to_gpu(np.zeros(n, np.int64))
        slots = self.slot_mapping.copy_to_gpu(np.full(n, -1))
        if mode is CUDAGraphMode.PIECEWISE:  # attention stays outside
            return ids, places, self.kv_caches, None
        num_reqs = descriptor.num_reqs
        assert num_reqs is not None and self._max_model_len is not None
        lens = np.full(num_reqs, n // num_reqs, np.int32)
        lens[: n % num_reqs] += 1
        metadata = AttentionMetadata(
            query_start_loc=self.query_start_loc.copy_to_gpu(np.append(0, lens.cumsum())),
            seq_lens=self.seq_lens.copy_to_gpu(lens),
            block_table=self.block_tables.copy_to_gpu(
                np.zeros((num_reqs, self.block_table.shape[1]), np.int32)
            ),
            slot_mapping=slots,
            # What the host says is recorded with the kernels, so it must be true of every replay.
            num_decodes=num_reqs if descriptor.uniform else 0,
            max_query_len=1 if descriptor.uniform else n,
            max_seq_len=self._max_model_len,
        )
        return ids, places, self.kv_caches, metadata

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step and sample for every request that has caught up."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if self._one_thread else threads)
        try:
            with torch.inference_mode():
                return self._execute_model(scheduler_output)
        finally:
            torch.set_num_threads(threads)

    def _allocate_kv_caches(self, shape: tuple[int, ...]) -> list[Tensor]:
        model = self.model
        try:
            return [
                torch.zeros(shape, dtype=model.dtype, device=model.device)
                for _ in range(model.config.num_hidden_layers)
            ]
        except RuntimeError as error:  # on a GPU and on a CPU torch has no MemoryError
            raise MemoryError(str(error).partition("\n")[0]) from error

    def _model_forward(
        self,
        input_ids: np.ndarray,
        positions: np.ndarray,
        attn_metadata: attention.AttentionMetadata,
    ) -> Tensor:
        """Copy the step to the device and start the model on it; the host does not wait."""
        if self.prepare_inputs_event is not None:
            # A step that samples nothing is not waited for: its copies may still be on their way.
            self.prepare_inputs_event.synchronize()
        md = attn_metadata
        num_tokens, num_reqs = len(input_ids), len(md.seq_lens)
        mode, descriptor = self.dispatcher.dispatch(
            num_tokens, is_uniform_decode(md.max_query_len, 1, num_tokens, num_reqs)
        )
        n = descriptor.num_tokens
        # A graph that holds attention has been captured for so many requests. Outside of graphs attention
        # takes those that there are, whatever rows of padding the pieces have.
        reqs = descriptor.num_reqs if mode is CUDAGraphMode.FULL else num_reqs
        assert reqs is not None
        on_device = AttentionMetadata(
            # A request of padding has no tokens, and its blocks are the null block.
            query_start_loc=self.query_start_loc.copy_to_gpu(
                md.query_start_loc, reqs + 1, padding=num_tokens
            ),
            seq_lens=self.seq_lens.copy_to_gpu(md.seq_lens, reqs),
            block_table=self.block_tables.copy_to_gpu(md.block_table, reqs),
            slot_mapping=self.slot_mapping.copy_to_gpu(md.slot_mapping, n, padding=-1),
            num_decodes=count_decodes(md.query_start_loc),
            max_query_len=md.max_query_len,
            max_seq_len=md.max_seq_len,
        )
        ids = self.input_ids.copy_to_gpu(input_ids, n)
        places = self.positions.copy_to_gpu(positions, n)
        if self.prepare_inputs_event is not None:
            self.prepare_inputs_event.record()
        return self.graphed.forward(mode, descriptor, ids, places, self.kv_caches, on_device)

    def _compute_logits(self, hidden_states: Tensor, rows: np.ndarray) -> np.ndarray:
        """float32 `[len(rows), vocab_size]` on the host, which waits for it."""
        chosen = hidden_states[torch.as_tensor(rows, device=self.device)]
        logits: np.ndarray = self.model.compute_logits(chosen).float().cpu().numpy()
        return logits
