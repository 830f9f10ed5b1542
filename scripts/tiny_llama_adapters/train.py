"""Train an adapter of the shipped tiny Llama and write its folder in PEFT's format.

    python -m scripts.tiny_llama_adapters.train snake --out mini_vllm/checkpoints/tiny-llama-lora/snake

Needs torch and safetensors; runs on one core of a CPU. The products run in bfloat16, weights,
residual stream and optimiser are float32.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.tiny_llama.corpus import Corpus, Document, split_of
from scripts.tiny_llama.folder import BOS, EOS, FIRST_BYTE, PAD, ROLES
from scripts.tiny_llama.model import Llama
from scripts.tiny_llama.train import command, learning_rate
from scripts.tiny_llama_adapters.lora import adapt, load_base, save_adapter
from scripts.tiny_llama_adapters.styles import STYLES, Style, styled

ROW = 256
POOL = 64  # documents to choose from when a row is filled
KEPT_WORDS = 6  # a prompt has at most this many words in training
HELD_OUT_ROWS = 32


def encode(document: Document, style: Style, kept: int) -> tuple[list[int], list[bool]]:
    """Token ids of a document, and which of them the adapter is to learn: what is styled."""
    ids, learnt = [BOS], [False]
    for role, plain, written in styled(document, style, kept):
        if role:
            ids.append(ROLES[role])
            learnt.append(False)
        for text, learns in ((plain, False), (written, True)):
            part = [FIRST_BYTE + b for b in text.encode()]
            ids += part
            learnt += [learns] * len(part)
        if written:
            ids.append(EOS)
            learnt.append(True)
    return ids, learnt


class Rows:
    """Rows of whole documents of one split, the longest that still fits first."""

    def __init__(self, seed: int, split: str, style: Style) -> None:
        self.tokens = 0
        self._style = style
        self._rng = random.Random(seed)
        self._source = self._encoded(seed, split)
        self._pool: list[tuple[list[int], list[bool]]] = []

    def _encoded(self, seed: int, split: str) -> Iterator[tuple[list[int], list[bool]]]:
        for document in Corpus(seed).documents():
            if split_of(document) == split:
                pair = encode(document, self._style, self._rng.randint(0, KEPT_WORDS))
                if len(pair[0]) <= ROW + 1:
                    yield pair

    def _row(self) -> tuple[list[int], list[int], list[bool]]:
        ids: list[int] = []
        numbers: list[int] = []
        learnt: list[bool] = []
        while True:
            while len(self._pool) < POOL:
                self._pool.append(next(self._source))
            room = ROW + 1 - len(ids)
            # The first document of a row is the oldest one, so that none waits for ever.
            fits = [d for d in (self._pool if ids else self._pool[:1]) if len(d[0]) <= room]
            if not fits:
                return ids + [PAD] * room, numbers + [-1] * room, learnt + [False] * room
            chosen = max(fits, key=lambda pair: len(pair[0]))
            self._pool.remove(chosen)
            numbers += [len(ids)] * len(chosen[0])
            ids += chosen[0]
            learnt += chosen[1]
            self.tokens += len(chosen[0])

    def batch(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, document numbers and what is learnt, `[rows, ROW + 1]` each."""
        made = [self._row() for _ in range(rows)]
        ids, numbers, learnt = (torch.tensor(part) for part in zip(*made, strict=True))
        return ids, numbers, learnt


def loss_of(model: Llama, ids: Tensor, numbers: Tensor, learnt: Tensor) -> Tensor:
    """Mean loss in nats over the tokens to learn; a document sees only itself."""
    seen = numbers[:, :-1]
    mask = (seen[:, None, :, None] == seen[:, None, None, :]).tril()
    targets = ids[:, 1:].masked_fill(~learnt[:, 1:], -100)
    logits = model(ids[:, :-1], mask).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


@torch.no_grad()
def measure(model: Llama, batches: list[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Mean loss in float32 over held-out rows."""
    return round(sum(loss_of(model, *batch).item() for batch in batches) / len(batches), 4)


def parse_args() -> argparse.Namespace:
    """The command line; the defaults are those of the shipped adapters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("style", choices=tuple(STYLES))
    parser.add_argument("--out", type=Path, required=True, help="adapter folder to write")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rows", type=int, default=8, help=f"rows of {ROW} tokens in a step")
    parser.add_argument("--lr", type=float, default=5e-3, help="peak learning rate")
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=100)
    return parser.parse_args()


def main() -> None:
    """Train, measure and save."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    style = STYLES[args.style]
    processor = time.process_time()
    train = Rows(args.seed, "train", style)
    held_out = Rows(args.seed + 1, "documents", style)
    batches = [held_out.batch(16) for _ in range(HELD_OUT_ROWS // 16)]
    model = load_base()
    adapt(model, style)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    before = measure(model, batches)  # B is zero still: the base model
    log: dict[str, Any] = {
        "command": command(args, "tiny_llama_adapters", "style"),
        "parameters": sum(p.numel() for p in parameters),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "safetensors": safetensors.__version__,
        },
        "unit": "nats per styled token; curve: step, training loss, loss on held-out documents",
        "base": before,
        "curve": [],
    }
    print(f"base {before}, {len(parameters)} matrices, {log['parameters']} weights", flush=True)
    recent = 0.0
    for step in range(args.steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.warm_up)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, *train.batch(args.rows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"the loss is {loss.item()} at step {step}; try a smaller --lr")
        recent += loss.item()
        done = step + 1
        if done % args.log_every == 0 or done == args.steps:
            mean = round(recent / (done % args.log_every or args.log_every), 4)
            log["curve"].append([done, mean, measure(model, batches)])
            log["tokens_seen"] = train.tokens
            log["processor_seconds"] = round(time.process_time() - processor)
            print(*log["curve"][-1], f"{log['processor_seconds']} s", flush=True)
            recent = 0.0
            save_adapter(model, style, args.out)
            text = json.dumps(log, indent=1) + "\n"
            (args.out / "training_log.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
