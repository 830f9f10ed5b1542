"""Given: one decode step of the torch Llama with random weights, in any width, ready to be counted and timed.

    step = DecodeStep(hidden_size=128, batch=1)
    step.eager()                  # one step, operator by operator
    compiled, code = step.compiled()      # the same through torch.compile, and what Inductor wrote

Weights are float32 and random, each request has 64 tokens. Needs torch; `compiled` a C++ compiler as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.config.model import LlamaConfig

LAYERS, CONTEXT, BLOCK_SIZE = 4, 64, 16


def config_of(hidden_size: int) -> LlamaConfig:
    """The shipped tiny Llama where `hidden_size` is 128, and the same shape wider."""
    return LlamaConfig(
        vocab_size=512, hidden_size=hidden_size, intermediate_size=3 * hidden_size,
        num_hidden_layers=LAYERS, num_attention_heads=hidden_size // 32,
        num_key_value_heads=hidden_size // 64, head_dim=32, max_position_embeddings=256,
    )  # fmt: skip


def weights_of(config: LlamaConfig) -> dict[str, Any]:
    """Random float32 arrays by Hugging Face name."""
    rng = np.random.default_rng(0)
    size, inner = config.hidden_size, config.intermediate_size
    kv = config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (config.vocab_size, size),
        "model.norm": (size,),
        "lm_head": (config.vocab_size, size),
    }
    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}"
        shapes |= {
            f"{at}.input_layernorm": (size,),
            f"{at}.post_attention_layernorm": (size,),
            f"{at}.self_attn.q_proj": (size, size),
            f"{at}.self_attn.k_proj": (kv, size),
            f"{at}.self_attn.v_proj": (kv, size),
            f"{at}.self_attn.o_proj": (size, size),
            f"{at}.mlp.gate_proj": (inner, size),
            f"{at}.mlp.up_proj": (inner, size),
            f"{at}.mlp.down_proj": (size, inner),
        }
    return {
        f"{name}.weight": rng.standard_normal(shape, dtype=np.float32) * 0.05
        for name, shape in shapes.items()
    }


class DecodeStep:
    """`batch` requests that each get one token.

    Attributes:
        weight_bytes: bytes of the weights that a step reads; of the embedding it reads a row a request.
    """

    def __init__(self, hidden_size: int, batch: int) -> None:
        import torch

        from mini_vllm.gpu.backend import AttentionMetadata, get_kv_cache_shape
        from mini_vllm.gpu.llama import LlamaForCausalLM

        config = config_of(hidden_size)
        weights = weights_of(config)
        self.weight_bytes = sum(
            array.nbytes for name, array in weights.items() if "embed_tokens" not in name
        )
        self.model = LlamaForCausalLM(config, weights, device="cpu")
        blocks = -(-CONTEXT // BLOCK_SIZE)
        tables = torch.arange(1, 1 + batch * blocks, dtype=torch.int32).reshape(batch, blocks)
        shape = get_kv_cache_shape(
            1 + batch * blocks, BLOCK_SIZE, config.num_key_value_heads, config.head_dim
        )
        self.kv_caches = [torch.zeros(shape) for _ in range(LAYERS)]
        self.metadata = AttentionMetadata(
            query_start_loc=torch.arange(batch + 1, dtype=torch.int32),
            seq_lens=torch.full((batch,), CONTEXT, dtype=torch.int32),
            block_table=tables,
            slot_mapping=tables[:, -1].long() * BLOCK_SIZE + (CONTEXT - 1) % BLOCK_SIZE,
            num_decodes=batch,
            max_query_len=1,
            max_seq_len=CONTEXT,
        )
        self.inner_rows = torch.ones(batch, config.intermediate_size)
        self.rows = torch.ones(batch, hidden_size)
        self.input_ids = torch.arange(batch) % config.vocab_size
        self.positions = torch.full((batch,), CONTEXT - 1)

    def _run(self, input_ids: Any, positions: Any) -> Any:
        hidden_states = self.model.forward(input_ids, positions, self.kv_caches, self.metadata)
        return self.model.compute_logits(hidden_states)

    def eager(self) -> Any:
        """One step: logits `[batch, vocab_size]`."""
        return self._run(self.input_ids, self.positions)

    def products(self) -> int:
        """The matrix products of a step with the weights, and nothing between them; how many they are."""
        rows, inner = self.rows, self.inner_rows
        for layer in self.model.layers:
            layer.self_attn.qkv_proj(rows)
            layer.self_attn.o_proj(rows)
            layer.mlp.gate_up_proj(rows)
            layer.mlp.down_proj(inner)
        self.model.compute_logits(rows)
        return 4 * len(self.model.layers) + 1

    def attention(self) -> None:
        """A layer's attention, the write of its K and V included."""
        config = self.model.config
        kv = self.rows.view(len(self.rows), -1, config.head_dim)[:, : config.num_key_value_heads]
        query = self.rows.view(len(self.rows), -1, config.head_dim)
        self.model.attention.forward(query, kv, kv, self.kv_caches[0], self.metadata)

    def traced(self) -> Callable[[], Any]:
        """The step as one list of the same operators, started without the model's Python."""
        import torch

        torch._dynamo.reset()
        made = torch.compile(self._run, fullgraph=True, dynamic=False, backend="eager")
        step = lambda: made(self.input_ids, self.positions)  # noqa: E731
        step()
        return step

    def compiled(self) -> tuple[Callable[[], Any], str]:
        """The step as `torch.compile` makes it, for just these sizes, and the code that Inductor wrote."""
        import torch
        from torch._inductor.graph import GraphLowering

        codes: list[str] = []
        GraphLowering.save_output_code = staticmethod(codes.append)
        torch._dynamo.reset()
        made = torch.compile(self._run, fullgraph=True, dynamic=False)
        step = lambda: made(self.input_ids, self.positions)  # noqa: E731
        step()
        GraphLowering.save_output_code = None
        [code] = codes
        return step, code
