"""The Mixtral that is trained: the tiny Llama with experts in the place of each MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.tiny_llama.model import HIDDEN, LAYERS, Llama
from scripts.tiny_mixtral.folder import CONFIG

EXPERTS: int = CONFIG["num_local_experts"]
TOP_K: int = CONFIG["num_experts_per_tok"]
WIDTH: int = CONFIG["intermediate_size"]


class Experts(nn.Module):
    """A router and its experts.

    `w1`, `w3` and `w2` are Mixtral's names of gate, up and down, stacked over the experts. After a
    forward in training `balance` holds the balance loss, and `counts` how many tokens each expert had.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.empty(EXPERTS, WIDTH, HIDDEN))
        self.w3 = nn.Parameter(torch.empty(EXPERTS, WIDTH, HIDDEN))
        self.w2 = nn.Parameter(torch.empty(EXPERTS, HIDDEN, WIDTH))
        self.balance = torch.zeros(())
        self.counts = torch.zeros(EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        """`x [batch, length, hidden]`: two experts for each token, weighed by the router."""
        flat = x.reshape(-1, HIDDEN)
        with torch.autocast("cpu", enabled=False):  # a tie in bfloat16 is none in float32
            probabilities = F.linear(flat.float(), self.gate.weight).softmax(dim=-1)
        weights, chosen = probabilities.topk(TOP_K, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        # How often an expert is chosen, times how probable it is: least when both are even.
        share = counts / flat.shape[0]
        self.balance = EXPERTS * (share * probabilities.mean(dim=0)).sum() / TOP_K
        self.counts = counts

        order = chosen.flatten().argsort(stable=True)
        rows = flat.index_select(0, order // TOP_K)
        outputs = []
        experts = zip(self.w1.unbind(), self.w2.unbind(), self.w3.unbind(), strict=True)
        for part, (w1, w2, w3) in zip(rows.split(counts.tolist()), experts, strict=True):
            inner = F.silu(F.linear(part, w1)) * F.linear(part, w3)
            outputs.append(F.linear(inner, w2))
        back = torch.cat(outputs).index_select(0, order.argsort())
        mixed = back.view(-1, TOP_K, HIDDEN) * weights.unsqueeze(-1).to(back.dtype)
        return mixed.sum(dim=1).view(x.shape)


class Mixtral(Llama):
    """A Llama whose layers' `mlp` are `Experts`."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.mlp = Experts()

    def experts(self) -> list[Experts]:
        """The mixture of each layer."""
        return [layer.mlp for layer in self.layers]

    def start_from_dense(self, weights: dict[str, Tensor]) -> None:
        """Take over a trained tiny Llama; an expert begins as a random part of its layer's MLP.

        The two experts of a token have weights that sum to 1, about a half each. An expert holds
        WIDTH of the MLP's neurons, so its output is scaled by their inverse share: the mixture then
        begins as an estimate of the MLP.
        """
        own = self.state_dict()
        for name, weight in weights.items():
            if ".mlp." not in name:
                own[name].copy_(weight)
        with torch.no_grad():
            for i, mixture in enumerate(self.experts()):
                gate, up, down = (
                    weights[f"layers.{i}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down")
                )
                nn.init.normal_(mixture.gate.weight, std=0.02)
                for e in range(EXPERTS):
                    kept = torch.randperm(gate.shape[0])[:WIDTH]
                    mixture.w1[e].copy_(gate[kept])
                    mixture.w3[e].copy_(up[kept])
                    mixture.w2[e].copy_(down[:, kept] * (gate.shape[0] / WIDTH))

    def start_from_checkpoint(self, weights: dict[str, Tensor]) -> None:
        """Take over what `checkpoint` has written."""
        own = {name: torch.empty_like(weight) for name, weight in self.state_dict().items()}
        for name, weight in own.items():
            *path, last = f"model.{name}".replace(".mlp.", ".block_sparse_moe.").split(".")
            if last in ("w1", "w2", "w3"):
                for e in range(EXPERTS):
                    weight[e] = weights[".".join([*path, "experts", str(e), last, "weight"])]
            else:
                weight.copy_(weights[".".join([*path, last])])
        self.load_state_dict(own)

    def checkpoint(self) -> dict[str, Tensor]:
        """The weights under the names of a Hugging Face checkpoint, in bfloat16."""
        named: dict[str, Tensor] = {}
        for name, weight in self.state_dict().items():
            *path, last = f"model.{name}".replace(".mlp.", ".block_sparse_moe.").split(".")
            if last in ("w1", "w2", "w3"):
                parts = {
                    ".".join([*path, "experts", str(e), last, "weight"]): weight[e]
                    for e in range(EXPERTS)
                }
            else:
                parts = {".".join([*path, last]): weight}
            named |= {
                k: v.detach().to(torch.bfloat16).contiguous().clone() for k, v in parts.items()
            }
        return named


def parameters() -> tuple[int, int]:
    """How many weights the model has, and how many of them one token meets."""
    total = sum(p.numel() for p in Mixtral().parameters())
    expert = 3 * WIDTH * HIDDEN
    return total, total - LAYERS * (EXPERTS - TOP_K) * expert
