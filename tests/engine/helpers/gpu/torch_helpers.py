"""The torch Llama fed by numpy's metadata. Imports torch, so a test imports it inside."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from mini_vllm.attention import AttentionMetadata as NumpyMetadata
from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.gpu.backend import AttentionMetadata, TorchAttention, count_decodes
from mini_vllm.gpu.llama import LlamaForCausalLM
from mini_vllm.model_loader import load_model
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.models.model_helpers import Server


def to_device(md: NumpyMetadata, device: torch.device | str = "cpu") -> AttentionMetadata:
    """Numpy's metadata as tensors."""

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, device=device)

    return AttentionMetadata(
        query_start_loc=tensor(md.query_start_loc),
        seq_lens=tensor(md.seq_lens),
        block_table=tensor(md.block_table),
        slot_mapping=tensor(md.slot_mapping),
        num_decodes=count_decodes(md.query_start_loc),
        max_query_len=md.max_query_len,
        max_seq_len=md.max_seq_len,
    )


class TorchServer(Server):
    """`Server` for a torch model; arrays go in and come out."""

    def new_cache(self, shape: tuple[int, ...]) -> Any:
        return torch.full(shape, torch.nan, dtype=self.model.dtype, device=self.model.device)

    def logits(self, ids: Any, positions: Any, metadata: NumpyMetadata) -> np.ndarray:
        device = self.model.device
        hidden = self.model.forward(
            torch.tensor(ids, device=device),
            torch.tensor(positions, device=device),
            self.kv_caches,
            to_device(metadata, device),
        )
        logits: np.ndarray = self.model.compute_logits(hidden).float().cpu().numpy()
        return logits


def torch_model(device: str, **options: Any) -> Any:
    """Makes a torch model on `device`, called as `LlamaForCausalLM` is."""
    return partial(LlamaForCausalLM, device=device, **options)


def torch_engine(device: str, **settings: Any) -> LLMEngine:
    """An engine over the shipped checkpoint on `device`, with `TorchAttention`."""
    made: Any = partial(LlamaForCausalLM, device=device)
    model = load_model(DEFAULT_MODEL, TorchAttention(), made)  # type: ignore[arg-type]
    config = EngineConfig(attention="torch", **settings)
    return LLMEngine(model, config, tokenizer=Tokenizer.from_folder(DEFAULT_MODEL))
