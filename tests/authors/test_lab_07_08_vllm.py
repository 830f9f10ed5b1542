"""Lab 07-08: what its page says of vLLM's batch-invariant mode, asked of vLLM's own classes.

pytest -m vllm tests/authors/test_lab_07_08_vllm.py
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


def test_only_tritons_experts_declare_it() -> None:
    """Of all modular kernels that import here, `TritonExperts` and what derives from it."""
    from vllm.model_executor.layers.fused_moe import experts
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts

    for module in pkgutil.iter_modules(experts.__path__):
        try:
            importlib.import_module(f"{experts.__name__}.{module.name}")
        except ImportError:  # needs a package that this build lacks
            continue

    def below(cls: Any) -> set[Any]:
        return {cls}.union(*(below(one) for one in cls.__subclasses__()))

    found = {cls for cls in below(FusedMoEExperts) if cls._supports_batch_invariance()}
    assert TritonExperts in found
    assert all(issubclass(cls, TritonExperts) for cls in found)
    assert len(below(FusedMoEExperts)) > 10


def test_the_order_of_a_sum_changes_at_65_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a tuned file BLOCK_SIZE_K is 128 up to 64 tokens and then 64; invariant it is always 32."""
    from vllm import envs
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config

    def block_k(tokens: int) -> int:
        found: int = get_default_config(tokens, 8, 14336, 4096, 2, None)["BLOCK_SIZE_K"]
        return found

    assert [block_k(tokens) for tokens in (1, 64, 65, 8192)] == [128, 128, 64, 64]
    monkeypatch.setattr(envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    assert {block_k(tokens) for tokens in (1, 64, 65, 8192)} == {32}


@pytest.mark.parametrize("invariant", [False, True])
def test_deepseeks_router_has_another_kernel_for_16_rows(
    monkeypatch: pytest.MonkeyPatch, invariant: bool
) -> None:
    """`GateLinear` as it is on a Hopper card, with stand-ins for its kernels: the mode is not asked."""
    import torch
    from vllm import _custom_ops, envs
    from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear

    called: list[str] = []

    def special(hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        called.append("dsv3_router_gemm")
        return torch.zeros(len(hidden_states), 256)

    def general(x: torch.Tensor, weight: torch.Tensor, **_: Any) -> torch.Tensor:
        called.append("mm")
        return torch.zeros(len(x), weight.shape[1])

    monkeypatch.setattr(_custom_ops, "dsv3_router_gemm", special, raising=False)
    monkeypatch.setattr(torch, "mm", general)
    monkeypatch.setattr(envs, "VLLM_BATCH_INVARIANT", invariant, raising=False)
    gate = object.__new__(GateLinear)
    torch.nn.Module.__init__(gate)
    gate.weight = torch.nn.Parameter(torch.zeros(256, 7168, dtype=torch.bfloat16))
    gate.out_dtype = torch.float32
    gate.allow_dsv3_router_gemm = gate.allow_cublas_router_gemm = True
    for rows in (1, 16, 17):
        gate.forward(torch.zeros(rows, 7168, dtype=torch.bfloat16))
    assert called == ["dsv3_router_gemm", "dsv3_router_gemm", "mm"]
