"""What the drafters learn from: texts that the tiny Llama writes itself, and its states on them.

A drafter must guess what the target will say, so it learns from texts that the target wrote:
continuations of the beginnings of training documents, a third of them greedy, a third each at
temperatures 0.7 and 1.0. The texts that measure it continue openings that are held out from both
models' training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from scripts.tiny_llama.corpus import Corpus, split_of
from scripts.tiny_llama.train import encode

FOLDER = Path(__file__).parents[2] / "mini_vllm" / "checkpoints" / "tiny-llama"
BEGINNINGS = (8, 16, 24, 32, 48)  # tokens of a document that the target goes on from
TEMPERATURES = (0.0, 0.7, 1.0)
ROW = 128


@dataclass
class States:
    """What the target computes for rows of tokens."""

    last: Tensor  # [rows, length, hidden], after the final norm: what its LM head reads
    residual: list[Tensor]  # before layer 0, 1, ... and after the last one, before the final norm
    probabilities: Tensor  # [rows, length, vocab], of the token after each


class Target:
    """The shipped tiny Llama in float32."""

    def __init__(self) -> None:
        self.model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
        self.embedding = self.model.model.embed_tokens.weight.detach()  # the LM head as well
        self._residual: list[Tensor] = []
        for layer in self.model.model.layers:
            layer.register_forward_pre_hook(lambda _, args: self._residual.append(args[0]))
        self.model.model.norm.register_forward_pre_hook(
            lambda _, args: self._residual.append(args[0])
        )

    @torch.no_grad()
    def states(self, ids: Tensor) -> States:
        """One forward pass over `ids [rows, length]`."""
        self._residual.clear()
        last = self.model.model(ids).last_hidden_state
        logits = F.linear(last, self.embedding)
        return States(last, list(self._residual), logits.softmax(-1))

    @torch.no_grad()
    def write(self, beginnings: Tensor, temperature: float) -> Tensor:
        """Continue `beginnings [rows, n]` to `ROW` tokens; EOS is a token like any other."""
        sampling = {"do_sample": False, "temperature": None}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature}
        return self.model.generate(
            beginnings,
            attention_mask=torch.ones_like(beginnings),
            max_new_tokens=ROW - beginnings.shape[1],
            eos_token_id=None,
            pad_token_id=0,
            **sampling,
        )


def make_rows(
    target: Target, split: str, seed: int, count: int, temperatures: tuple[float, ...]
) -> Tensor:
    """`count` rows of `ROW` tokens for each length of a beginning and each temperature."""
    documents = (encode(d) for d in Corpus(seed).documents() if split_of(d) == split)
    rows = []
    for length in BEGINNINGS:
        for temperature in temperatures:
            beginnings: list[list[int]] = []
            while len(beginnings) < count:
                document = next(documents)
                if len(document) > length:
                    beginnings.append(document[:length])
            rows.append(target.write(torch.tensor(beginnings), temperature))
    return torch.cat(rows)
