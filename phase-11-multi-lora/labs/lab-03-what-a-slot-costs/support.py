"""What the lab's tests and scripts share: servers, and what real vLLM allocated for them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL

TINY = Path(DEFAULT_MODEL)
RECORDED = Path(__file__).resolve().parent / "recorded.json"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Shape:
    """The fields of the starter's `Model`."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool = False
    adapts_embeddings: bool = True


@dataclass(frozen=True)
class Settings:
    """The fields of the starter's `LoRAConfig`, but for its bytes per number."""

    max_loras: int = 1
    max_lora_rank: int = 16
    target_modules: tuple[str, ...] | None = None
    fully_sharded_loras: bool = False


@dataclass(frozen=True)
class Server:
    """A model as it is served: `dtype` is the model's, `lora_dtype` the adapters' (`auto`: the same)."""

    model: str
    lora: Settings = field(default_factory=Settings)
    dtype: str = "bfloat16"
    lora_dtype: str = "auto"
    tp: int = 1

    @property
    def shape(self) -> Shape:
        return MODELS[self.model]

    @property
    def itemsize(self) -> int:
        return BYTES[self.dtype if self.lora_dtype == "auto" else self.lora_dtype]

    def words(self) -> str:
        """In a line, without what is usual."""
        lora = self.lora
        words = [self.model, f"rank {lora.max_lora_rank}", self.dtype]
        words += [f"adapters {self.lora_dtype}"] * (self.lora_dtype != "auto")
        words += [f"{lora.max_loras} slots"] * (lora.max_loras > 1)
        words += [f"TP {self.tp}"] * (self.tp > 1) + ["fully sharded"] * lora.fully_sharded_loras
        words += [" ".join(lora.target_modules)] if lora.target_modules is not None else []
        return ", ".join(words)


MODELS = {
    "tiny": Shape(4, 128, 384, 4, 2, 32, 264, tied=True),
    "tiny untied": Shape(4, 128, 384, 4, 2, 32, 264),
    "tiny Mistral": Shape(4, 128, 384, 4, 2, 32, 264, adapts_embeddings=False),
    "no GQA": Shape(2, 64, 160, 2, 2, 32, 100),
    "one KV head": Shape(3, 96, 256, 6, 1, 32, 331),
    "Llama-2-7B": Shape(32, 4096, 11008, 32, 32, 128, 32_000),
    "Llama-3-8B": Shape(32, 4096, 14336, 32, 8, 128, 128_256),
    "Llama-3-70B": Shape(80, 8192, 28672, 64, 8, 128, 128_256),
}
"""Made up, but for the shipped tiny Llama and the last three."""

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

SERVED = (
    Server("tiny", dtype="float32"),
    Server("tiny", Settings(max_loras=4), "float32"),
    Server("tiny", Settings(max_lora_rank=8), "float32"),
    Server("tiny", Settings(max_loras=4, max_lora_rank=32)),
    Server("tiny", dtype="float32", lora_dtype="bfloat16"),
    Server("tiny untied", dtype="float32"),
    Server("tiny Mistral", dtype="float32"),
    Server("no GQA", Settings(max_lora_rank=8), "float32"),
    Server("one KV head", Settings(max_loras=2, max_lora_rank=8)),
    Server("tiny", Settings(2, target_modules=("q_proj", "v_proj")), "float32"),
    Server("tiny", Settings(target_modules=("qkv_proj", "o_proj")), "float32"),
    Server("tiny", Settings(target_modules=("gate_proj",)), "float32"),
    Server("tiny untied", Settings(4, 8, ("embed_tokens", "lm_head")), "float32"),
    Server("tiny", Settings(target_modules=("lm_head", "down_proj")), "float32"),
    Server("no GQA", Settings(target_modules=LINEARS)),
    Server("tiny Mistral", Settings(target_modules=("lm_head", "k_proj")), "float32"),
    Server("tiny", dtype="float32", tp=2),
    Server("tiny", Settings(2, 8, fully_sharded_loras=True), "float32", tp=2),
    Server("one KV head", Settings(max_loras=4, max_lora_rank=32), tp=2),
    Server("no GQA", Settings(1, 8, ("o_proj", "up_proj"), fully_sharded_loras=True), tp=2),
)
"""Run as they are: the real engine, its workers started, one process per rank."""

ON_PAPER = (
    Server("Llama-2-7B"),
    Server("Llama-2-7B", Settings(target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))),
    Server("Llama-3-8B"),
    Server("Llama-3-8B", Settings(16)),
    Server("Llama-3-8B", Settings(1, 64)),
    Server("Llama-3-8B", Settings(target_modules=LINEARS)),
    Server("Llama-3-8B", tp=2),
    Server("Llama-3-8B", tp=16),
    Server("Llama-3-70B"),
    Server("Llama-3-70B", tp=8),
    Server("Llama-3-70B", Settings(fully_sharded_loras=True), tp=8),
)
"""Too large to be run: vLLM's own classes make the model and its slots on torch's meta device, where a tensor
has a shape and no memory. Of several ranks, the first."""


@cache
def recorded() -> dict[Server, dict[str, Any]]:
    """Of each server `bytes`, those of all slots on one rank, and `modules`: by the last part of a module's
    name how many there are, and the shapes of one slot's `a` and `b`.

    vLLM keeps the embedding's A as (vocabulary, rank), a row per token, because a lookup takes rows. Here it
    is turned round, to be (rank, in) as every other.
    """
    found = {}
    for one in json.loads(RECORDED.read_text(encoding="utf-8"))["servers"]:
        if "embed_tokens" in one["modules"]:
            one["modules"]["embed_tokens"]["a"][0].reverse()
        fields = dict(one["server"])
        lora = fields.pop("lora")
        if lora["target_modules"] is not None:
            lora["target_modules"] = tuple(lora["target_modules"])
        found[Server(lora=Settings(**lora), **fields)] = one
    return found


def as_json(server: Server) -> dict[str, Any]:
    return asdict(server)


def model_of(lab: Any, name: str) -> Any:
    """A model, as the learner's `Model`."""
    return lab.Model(**asdict(MODELS[name]))


def config_of(lab: Any, server: Server) -> Any:
    """A server's settings, as the learner's `LoRAConfig`."""
    lora = server.lora
    return lab.LoRAConfig(
        lora.max_loras,
        lora.max_lora_rank,
        lora.target_modules,
        lora.fully_sharded_loras,
        server.itemsize,
    )


def counts(modules: dict[str, int]) -> str:
    """Modules and how many of each, in words."""
    return ", ".join(f"{count} {name}" for name, count in sorted(modules.items())) or "nothing"
