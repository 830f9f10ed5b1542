"""Real vLLM's CPU build with experts that are shared out among ranks."""

from __future__ import annotations

from typing import Any


def route_to_own_experts() -> None:
    """Let the CPU build run with experts shared out: it drops the map from all experts to a rank's own
    (`vllm/model_executor/layers/fused_moe/cpu_fused_moe.py:272 in CPUFusedMOE.__call__`), and its kernel then
    reads past the end. An expert that is elsewhere gets the weight 0 here."""
    import torch
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE

    def mapped(forward: Any) -> Any:
        def run(self: Any, layer: Any, x: Any, weights: Any, ids: Any, *rest: Any) -> Any:
            if layer.expert_map is not None:
                places = layer.expert_map[ids.long()]
                mine, weights = range(int((layer.expert_map >= 0).sum())), weights * (places >= 0)
                rows = []
                for row in places.tolist():
                    others = iter(set(mine) - set(row))
                    rows.append([place if place >= 0 else next(others) for place in row])
                ids = torch.tensor(rows, dtype=ids.dtype).reshape(ids.shape)
            return forward(self, layer, x, weights, ids, *rest)

        return run

    for name in ("forward_grouped_gemm", "forward_torch"):
        setattr(CPUFusedMOE, name, mapped(getattr(CPUFusedMOE, name)))
