"""Train a drafter for the shipped tiny Llama and write its checkpoint folder.

    python -m scripts.tiny_llama_drafters.train eagle --out mini_vllm/checkpoints/tiny-llama-eagle
    python -m scripts.tiny_llama_drafters.train eagle3 --out mini_vllm/checkpoints/tiny-llama-eagle3
    python -m scripts.tiny_llama_drafters.train draft --out mini_vllm/checkpoints/tiny-llama-draft

Needs torch, transformers and safetensors; runs on one core of a CPU. The products run in bfloat16,
weights, residual stream and optimiser are float32.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.tiny_llama import folder
from scripts.tiny_llama.train import command, learning_rate
from scripts.tiny_llama_drafters.heads import Eagle, Eagle3
from scripts.tiny_llama_drafters.target import BEGINNINGS, ROW, TEMPERATURES, Target, make_rows

PASSES = 4  # tokens of a chain, in training and when measuring
DECAY = 0.8  # a pass counts this much of the one before
DRAFT_VOCAB = 96
AUX_LAYERS = (
    1,
    2,
    4,
)  # EAGLE-3 reads the residual stream before layers 1 and 2, and after the last

Chain = list[Tensor]  # logits of each pass over the target's vocabulary, [rows, length, vocab]


class Drafter(ABC):
    """A module to train, its loss on a batch of rows, and its checkpoint."""

    module: nn.Module
    config: dict[str, Any]

    @abstractmethod
    def chain(self, ids: Tensor, passes: int) -> tuple[Tensor, Chain]:
        """The loss, and the logits of each pass, each for row i of `ROW - passes`."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The checkpoint, in the layout that vLLM loads."""


def cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Nats per token against the target's whole distribution."""
    return -(probabilities * logits.float().log_softmax(-1)).sum(-1).mean()


class EagleDrafter(Drafter):
    """Learns the target's next state and, more, the distribution that follows from it."""

    def __init__(self, target: Target, state_weight: float) -> None:
        self.target, self.state_weight = target, state_weight
        self.module = self.head = Eagle()
        nn.init.eye_(self.head.fc.weight[:, 128:])  # starts as the state it is given
        self.config = folder.CONFIG | {
            "architectures": ["EagleLlamaForCausalLM"],
            "num_hidden_layers": 1,
            "tie_word_embeddings": False,
        }

    def chain(self, ids: Tensor, passes: int) -> tuple[Tensor, Chain]:
        states, rows = self.target.states(ids), ids.shape[1] - passes
        state, loss, chain, cache = states.last[:, :rows], torch.zeros(()), [], []
        for p in range(passes):
            embeds = F.embedding(ids[:, 1 + p : 1 + p + rows], self.target.embedding)
            out, state = self.head(embeds, state, cache)
            chain.append(F.linear(out, self.target.embedding))
            at = slice(1 + p, 1 + p + rows)
            here = cross_entropy(chain[-1], states.probabilities[:, at])
            here = here + self.state_weight * F.smooth_l1_loss(out, states.last[:, at])
            loss = loss + DECAY**p * here
        return loss, chain

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.head.state_dict())


class Eagle3Drafter(Drafter):
    """Learns the distribution alone, over the tokens that the target's texts have."""

    def __init__(self, target: Target, rows: Tensor) -> None:
        self.target = target
        counts = torch.bincount(rows.flatten(), minlength=folder.CONFIG["vocab_size"])
        self.ids = counts.argsort(descending=True, stable=True)[:DRAFT_VOCAB].sort().values
        self.module = self.head = Eagle3(256, DRAFT_VOCAB)
        self.config = folder.CONFIG | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "intermediate_size": 256,
            "tie_word_embeddings": False,
            "draft_vocab_size": DRAFT_VOCAB,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS)},
        }

    def chain(self, ids: Tensor, passes: int) -> tuple[Tensor, Chain]:
        states, rows = self.target.states(ids), ids.shape[1] - passes
        aux = torch.cat([states.residual[i] for i in AUX_LAYERS], dim=-1)
        state, loss, chain, cache = self.head.fc(aux[:, :rows]).float(), torch.zeros(()), [], []
        for p in range(passes):
            at = slice(1 + p, 1 + p + rows)
            embeds = F.embedding(ids[:, at], self.target.embedding)
            out, state = self.head(embeds, state, cache)
            logits = self.head.lm_head(out)
            wanted = states.probabilities[:, at][..., self.ids]
            loss = loss + DECAY**p * cross_entropy(logits, wanted)
            whole = torch.full((*logits.shape[:2], folder.CONFIG["vocab_size"]), -math.inf)
            whole[..., self.ids] = logits.detach().float()
            chain.append(whole)
        return loss, chain

    def tensors(self) -> dict[str, Tensor]:
        known = torch.zeros(folder.CONFIG["vocab_size"], dtype=torch.bool)
        known[self.ids] = True
        return self.head.state_dict() | {
            "d2t": self.ids - torch.arange(DRAFT_VOCAB),  # what to add to a draft id
            "t2d": known,
        }


class SmallLlama(Drafter):
    """A Llama of its own with the target's vocabulary; it never sees a state of the target."""

    def __init__(self, target: Target, layers: int, hidden: int, width: int) -> None:
        self.target = target
        self.config = folder.CONFIG | {
            "hidden_size": hidden,
            "intermediate_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // folder.CONFIG["head_dim"],
            "num_key_value_heads": 1,
        }
        self.module = self.model = LlamaForCausalLM(LlamaConfig(**self.config))

    def chain(self, ids: Tensor, passes: int) -> tuple[Tensor, Chain]:
        rows = ids.shape[1] - passes
        logits = self.model(ids).logits
        loss = cross_entropy(logits, self.target.states(ids).probabilities)
        return loss, [logits[:, 1 + p : 1 + p + rows] for p in range(passes)]

    def tensors(self) -> dict[str, Tensor]:
        weights = self.model.state_dict()
        del weights["lm_head.weight"]  # the embedding
        return dict(weights)


@torch.no_grad()
def accepted(drafter: Drafter, rows: Tensor) -> list[float]:
    """Share of chains whose first 1, 2, ... tokens are the target's choice, on its greedy `rows`.

    A chain starts at every position that the target wrote.
    """
    shares = []
    for ids in rows.split(64):
        _, chain = drafter.chain(ids, PASSES)
        choice = drafter.target.states(ids).probabilities.argmax(-1)
        length = chain[0].shape[1]
        hits = [x.argmax(-1) == choice[:, 1 + p : 1 + p + length] for p, x in enumerate(chain)]
        written = torch.stack(hits)[:, :, max(BEGINNINGS) :]
        shares.append(written.cumprod(0).float().mean((1, 2)))
    return [round(x, 4) for x in torch.stack(shares).mean(0).tolist()]


def save(drafter: Drafter, out: Path, log: dict[str, Any]) -> None:
    """Write the checkpoint folder: weights, configuration, tokenizer and `training_log.json`."""
    folder.write_files(out)
    text = json.dumps(drafter.config, indent=2) + "\n"
    (out / "config.json").write_text(text, encoding="utf-8")
    tensors = {k: v.detach().clone().contiguous() for k, v in drafter.tensors().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "training_log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    """The command line; the defaults are those of the shipped checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=("eagle", "eagle3", "draft"))
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", type=int, default=32, help="rows of 128 tokens in a step")
    parser.add_argument(
        "--texts", type=int, default=192, help="rows of each length and temperature"
    )
    parser.add_argument("--passes", type=int, default=3, help="tokens of a chain in training")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--state-weight", type=float, default=1.0, help="EAGLE: the state's loss")
    parser.add_argument("--layers", type=int, default=1, help="draft model")
    parser.add_argument("--hidden", type=int, default=96, help="draft model")
    parser.add_argument("--width", type=int, default=384, help="draft model: of its MLP")
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=100)
    return parser.parse_args()


def main() -> None:
    """Write the rows, train, measure and save."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    target = Target()
    processor = time.process_time()
    rows = make_rows(target, "train", args.seed, args.texts, TEMPERATURES)
    held_out = make_rows(target, "openings", args.seed + 1, 16, (0.0,))
    written = time.process_time() - processor
    print(f"{len(rows)} rows, {written:.0f} s of processor time", flush=True)
    drafter: Drafter
    if args.kind == "eagle":
        drafter = EagleDrafter(target, args.state_weight)
    elif args.kind == "eagle3":
        drafter = Eagle3Drafter(target, rows)
    else:
        drafter = SmallLlama(target, args.layers, args.hidden, args.width)
    parameters = list(drafter.module.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    log: dict[str, Any] = {
        "command": command(args, "tiny_llama_drafters", "kind"),
        "parameters": sum(p.numel() for p in parameters),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "unit": "loss in nats per token, summed over a chain; accepted: of chains, by length",
        "rows": len(rows),
        "tokens_of_a_row": ROW,
        "curve": [],
    }
    recent = 0.0
    for step in range(args.steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.warm_up)
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = drafter.chain(rows[torch.randint(len(rows), (args.rows,))], args.passes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"the loss is {loss.item()} at step {step}; try a smaller --lr")
        recent += loss.item()
        done = step + 1
        if done % args.log_every == 0 or done == args.steps:
            steps = done % args.log_every or args.log_every
            log["curve"].append([done, round(recent / steps, 4), accepted(drafter, held_out)])
            log["processor_seconds"] = round(time.process_time() - processor)
            print(*log["curve"][-1], f"{log['processor_seconds']} s", flush=True)
            recent = 0.0
            save(drafter, args.out, log)


if __name__ == "__main__":
    main()
