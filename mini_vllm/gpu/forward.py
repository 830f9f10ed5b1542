"""The forward pass on a device: the plan in numpy on the host, the model in torch on the device.

Mirrors `vllm/v1/worker/gpu_model_runner.py:3668 GPUModelRunner._model_forward` and what stands around it.
`worker/model_runner.py` lays a step out in arrays. Here they are copied to tensors that stay where they
are from step to step, so that a CUDA graph, which remembers addresses, finds each step's numbers
where it looks. The logits come back, once a step, to the same sampler on the host.

Left out: sampling on the device; tokens that stay there for the next step, as upstream's do with
asynchronous scheduling (`vllm/v1/worker/gpu_model_runner.py:3591 in GPUModelRunner._bookkeeping_sync`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm import attention
from mini_vllm.attention.backend import Array
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_interface import KVCacheConfig
from mini_vllm.gpu.backend import AttentionMetadata, count_decodes
from mini_vllm.gpu.llama import LlamaForCausalLM
from mini_vllm.outputs import CUDAGraphStat
from mini_vllm.utils.blas import SMALL_HIDDEN_SIZE, has_chosen_threads
from mini_vllm.utils.math import cdiv
from mini_vllm.worker.forward import Ints, kv_cache_shape, share_arrays

PAD_SLOT_ID = -1
NULL_BLOCK_ID = 0


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

        Returns the device's rows up to there, whole: of a table also the columns past `values`, which hold
        what earlier steps left there. `padded` is `len(values)` if it is None.
        """
        n = len(values) if padded is None else padded
        self.np[tuple(slice(size) for size in values.shape)] = values
        self.np[len(values) : n] = padding
        if self.gpu is not self.cpu:
            self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)
        return self.gpu[:n]


def unpack(
    result: Tensor | tuple[Tensor, list[Tensor]],
    num_tokens: int,
    aux_hidden_states: list[Any] | None,
) -> Tensor:
    """The hidden states of a forward pass without its padding; those of other layers go to the list."""
    if isinstance(result, Tensor):
        return result[:num_tokens]
    hidden_states, aux = result
    if aux_hidden_states is not None:
        aux_hidden_states += [states[:num_tokens] for states in aux]
    return hidden_states[:num_tokens]


class TorchForward:
    """The torch model on its device, which may be the CPU.

    Args:
        model: a `mini_vllm.gpu.llama.LlamaForCausalLM`.
        config, kv_cache_config: as for `mini_vllm.worker.forward.NumpyForward`.

    Raises MemoryError if the KV cache is more than the device's memory.
    """

    def __init__(
        self, model: LlamaForCausalLM, config: ResolvedConfig, kv_cache_config: KVCacheConfig
    ) -> None:
        self.model = model
        self.stat: CUDAGraphStat | None = None
        self.device: torch.device = model.device
        shape = kv_cache_shape(model, config.num_gpu_blocks, config.block_size)
        self.kv_caches = share_arrays(kv_cache_config, lambda _: self._allocate(shape))
        rows, max_blocks = config.max_num_seqs, cdiv(config.max_model_len, config.block_size)

        def buffer(*size: int, dtype: torch.dtype) -> CpuGpuBuffer:
            return CpuGpuBuffer(*size, dtype=dtype, device=self.device)

        self.input_ids = buffer(config.token_budget, dtype=torch.int32)
        self.positions = buffer(config.token_budget, dtype=torch.int64)
        self.slot_mapping = buffer(config.token_budget, dtype=torch.int64)
        self.query_start_loc = buffer(rows + 1, dtype=torch.int32)
        self.seq_lens = buffer(rows, dtype=torch.int32)
        self.block_table = buffer(rows, max_blocks, dtype=torch.int32)
        on_gpu = self.device.type == "cuda"
        self.prepare_inputs_event = torch.cuda.Event() if on_gpu else None
        # Small products gain nothing by more threads (`mini_vllm/utils/blas.py`).
        small = model.config.hidden_size < SMALL_HIDDEN_SIZE
        self._one_thread = small and not has_chosen_threads() and not on_gpu

    def _allocate(self, shape: tuple[int, ...]) -> Tensor:
        try:
            return torch.zeros(shape, dtype=self.model.dtype, device=self.device)
        except RuntimeError as error:  # on a GPU and on a CPU torch has no MemoryError
            raise MemoryError(str(error).partition("\n")[0]) from error

    @contextmanager
    def step(self) -> Iterator[None]:
        """No gradients, and as many threads on the host as the model has use for."""
        with torch.inference_mode(), self.threads():
            yield

    @contextmanager
    def threads(self) -> Iterator[None]:
        """As many threads on the host as the model has use for."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if self._one_thread else threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def run(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: attention.AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> Tensor:
        """Copy the step to the device and start the model on it; the host does not wait."""
        ids, places, metadata = self._copy_step(input_ids, positions, attn_metadata)
        result = self.model.forward(ids, places, self.kv_caches, metadata)
        return unpack(result, len(input_ids), aux_hidden_states)

    def _copy_step(
        self,
        input_ids: Ints,
        positions: Ints,
        md: attention.AttentionMetadata,
        padded: int | None = None,
        padded_reqs: int | None = None,
    ) -> tuple[Tensor, Tensor, AttentionMetadata]:
        """Token ids, positions and metadata on the device, for `padded` tokens of `padded_reqs` requests.

        They are as many as the step has where None is given.
        """
        if self.prepare_inputs_event is not None:
            # A step that samples nothing is not waited for: its copies may still be on their way.
            self.prepare_inputs_event.synchronize()
        reqs = len(md.seq_lens) if padded_reqs is None else padded_reqs
        metadata = AttentionMetadata(
            # A request of padding has no tokens of its own, and its blocks are the null block.
            query_start_loc=self.query_start_loc.copy_to_gpu(
                md.query_start_loc, reqs + 1, padding=len(input_ids)
            ),
            seq_lens=self.seq_lens.copy_to_gpu(md.seq_lens, reqs),
            block_table=self.block_table.copy_to_gpu(md.block_table, reqs, padding=NULL_BLOCK_ID),
            slot_mapping=self.slot_mapping.copy_to_gpu(
                md.slot_mapping, padded, padding=PAD_SLOT_ID
            ),
            num_decodes=count_decodes(md.query_start_loc),
            max_query_len=md.max_query_len,
            max_seq_len=md.max_seq_len,
            sliding_window=md.sliding_window,
        )
        token_ids = self.input_ids.copy_to_gpu(input_ids, padded)
        token_positions = self.positions.copy_to_gpu(positions, padded)
        if self.prepare_inputs_event is not None:
            self.prepare_inputs_event.record()
        return token_ids, token_positions, metadata

    def compute_logits(self, hidden_states: Tensor, rows: Ints) -> Array:
        """float32 `[len(rows), vocab_size]` on the host, which waits for it."""
        chosen = hidden_states[torch.as_tensor(rows, device=self.device)]
        return self.to_numpy(self.model.compute_logits(chosen))

    def to_numpy(self, hidden_states: Tensor) -> Array:
        """The same on the host, which waits for it."""
        array: Array = hidden_states.float().cpu().numpy()
        return array
