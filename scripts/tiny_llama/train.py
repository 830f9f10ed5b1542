"""Train the shipped tiny Llama on the text of `corpus.py` and write its checkpoint folder.

    python -m scripts.tiny_llama.train --out mini_vllm/checkpoints/tiny-llama --compile

Needs torch and safetensors; runs on a CPU with two cores. bfloat16 is used for the products only:
the weights, the optimiser and the result are float32.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from scripts.tiny_llama.corpus import Corpus, Document, split_of
from scripts.tiny_llama.folder import BOS, EOS, FIRST_BYTE, PAD, ROLES, write_files
from scripts.tiny_llama.model import Llama

ROW = 512
LONG_ROW = 1024
POOL = 64  # documents to choose from when a row is filled
VALIDATION_ROWS = 48

Forward = Callable[[Tensor, Tensor | None], Tensor]


def encode(document: Document) -> list[int]:
    """Token ids of a document: `<bos>`, then each part, with `<eos>` after prose and answers."""
    ids = [BOS]
    for role, text in document:
        if role:
            ids.append(ROLES[role])
        ids += [FIRST_BYTE + b for b in text.encode()]
        if role in ("", "assistant"):
            ids.append(EOS)
    return ids


class Packer:
    """Fill rows with whole documents of one split, the longest that still fits first."""

    def __init__(self, seed: int, split: str) -> None:
        self.tokens = self.documents = 0
        self._source = (d for d in Corpus(seed).documents() if split_of(d) == split)
        self._pool: list[list[int]] = []

    def row(self, length: int) -> tuple[list[int], list[int]]:
        """Token ids and document numbers, both `length + 1` long; padding has number -1."""
        ids: list[int] = []
        numbers: list[int] = []
        while True:
            while len(self._pool) < POOL:
                self._pool.append(encode(next(self._source)))
            room = length + 1 - len(ids)
            # The first document of a row is the oldest one, so that none waits for ever.
            fits = [d for d in (self._pool if ids else self._pool[:1]) if len(d) <= room]
            if not fits:
                break
            chosen = max(fits, key=len)
            self._pool.remove(chosen)
            numbers += [self.documents] * len(chosen)
            ids += chosen
            self.documents += 1
            self.tokens += len(chosen)
        return ids + [PAD] * room, numbers + [-1] * room

    def batch(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """`rows` rows as two int64 arrays `[rows, length + 1]`."""
        pairs = [self.row(length) for _ in range(rows)]
        return torch.tensor([p[0] for p in pairs]), torch.tensor([p[1] for p in pairs])


def loss_of(model: Forward, ids: Tensor, numbers: Tensor, alone: bool) -> Tensor:
    """Mean loss in nats over the tokens that follow another token of their document.

    Args:
        alone: hide the other documents of the row, as if each were a prompt of its own.
    """
    mask = None
    if alone:
        seen = numbers[:, :-1]
        mask = (seen[:, None, :, None] == seen[:, None, None, :]).tril()
    targets = ids[:, 1:].masked_fill(numbers[:, 1:] != numbers[:, :-1], -100)
    targets = targets.masked_fill(numbers[:, 1:] < 0, -100)
    logits = model(ids[:, :-1], mask).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def learning_rate(step: int, steps: int, peak: float, warm_up: int) -> float:
    """Linear warm-up, then a cosine down to 2 % of the peak."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    part = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * part)))


def evaluate(model: Llama, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Mean loss in float32 over held-out rows, each document alone."""
    with torch.no_grad():
        losses: list[float] = [
            loss_of(model, ids, numbers, alone=True).item() for ids, numbers in batches
        ]
    return sum(losses) / len(losses)


def save(model: Llama, folder: Path, log: dict[str, Any]) -> None:
    """Write the checkpoint folder: weights, configuration, tokenizer and `training_log.json`."""
    write_files(folder)
    weights = {f"model.{k}": v.detach().clone().contiguous() for k, v in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "training_log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    """The command line; the defaults are those of the shipped checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument(
        "--start",
        type=Path,
        help="go on from this folder's weights; give another --seed, for new text",
    )
    parser.add_argument("--steps", type=int, default=11000)
    parser.add_argument("--rows", type=int, default=8, help="rows of 512 tokens in a step")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile; needs a C++ compiler"
    )
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=1000)
    return parser.parse_args()


def command(args: argparse.Namespace, package: str = "tiny_llama", what: str = "") -> str:
    """The command that repeats a run of `scripts/PACKAGE/train.py`, every setting spelled out.

    Args:
        what: the setting that is given without a flag, if there is one.
    """
    words = [f"python -m scripts.{package}.train", *([getattr(args, what)] if what else [])]
    for name, value in vars(args).items():
        if name == what:
            continue
        option = "--" + name.replace("_", "-")
        if isinstance(value, Path):
            words.append(f"{option} {value.name}")
        elif value is True:
            words.append(option)
        elif value is not False and value is not None:
            words.append(f"{option} {value}")
    return " ".join(words)


def main() -> None:
    """Train and save."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = Llama()
    if args.start is not None:
        weights = load_file(args.start / "model.safetensors")
        model.load_state_dict({k.removeprefix("model."): v for k, v in weights.items()})
    # The compiled function shares the weights; evaluation and saving use the plain module.
    forward = torch.compile(model, dynamic=False) if args.compile else model
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    train = Packer(args.seed, "train")
    held_out = {}
    for split in ("documents", "openings"):
        packer = Packer(args.seed + 1, split)
        held_out[split] = [packer.batch(8, ROW) for _ in range(VALIDATION_ROWS // 8)]

    log: dict[str, Any] = {
        "command": command(args),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "safetensors": safetensors.__version__,
        },
        "unit": "nats per predicted token; a token is one byte or a special token",
        "train": [],
        "held_out": [],
    }
    started = time.monotonic()
    recent = 0.0
    for step in range(args.steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.warm_up)
        # In one step of four, longer rows whose documents may look at the ones before them: every
        # position and distance up to the limit is seen.
        long = step % 4 == 3
        batch = train.batch(args.rows // 2, LONG_ROW) if long else train.batch(args.rows, ROW)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(forward, *batch, alone=not long)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"the loss is {loss.item()} at step {step}; try a smaller --lr")
        recent += loss.item()
        done = step + 1
        if done % args.log_every == 0:
            log["train"].append([done, round(recent / args.log_every, 4)])
            recent = 0.0
            seconds = time.monotonic() - started
            rate = train.tokens / seconds
            print(f"step {done} loss {log['train'][-1][1]} {rate:.0f} tokens/s", flush=True)
        if done % args.save_every == 0 or done == args.steps:
            model.eval()
            losses = {k: round(evaluate(model, v), 4) for k, v in held_out.items()}
            model.train()
            log["held_out"].append([done, losses])
            log["documents_seen"], log["tokens_seen"] = train.documents, train.tokens
            log["wall_seconds"] = round(time.monotonic() - started)
            print(f"step {done} held out {losses}", flush=True)
            save(model, args.out, log)
    log["final"] = {"train": log["train"][-1][1], "held_out": log["held_out"][-1][1]}
    save(model, args.out, log)


if __name__ == "__main__":
    main()
