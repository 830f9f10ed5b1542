"""Train the shipped tiny Mixtral, from the tiny Llama's weights, and write its checkpoint folder.

    python -m scripts.tiny_mixtral.train --out first-leg --stop 1200
    python -m scripts.tiny_mixtral.train --out mini_vllm/checkpoints/tiny-mixtral --start first-leg \\
        --seed 21 --steps 900 --lr 1.5e-3 --warm-up 50

Needs torch and safetensors; runs on one core of a CPU. The products run in bfloat16, weights and
optimiser are float32, and the result is rounded to bfloat16.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scripts.tiny_llama.train import Packer, command, evaluate, learning_rate, loss_of
from scripts.tiny_mixtral.folder import CONFIG, write_files
from scripts.tiny_mixtral.model import TOP_K, Mixtral, parameters

DENSE = Path(__file__).parents[2] / "mini_vllm" / "checkpoints" / "tiny-llama"
ROW, LONG_ROW = 256, 1024
VALIDATION_ROW, VALIDATION_ROWS = 512, 48  # as for the tiny Llama: the same rows, so losses compare

Batches = dict[str, list[tuple[Tensor, Tensor]]]


def held_out_batches() -> Batches:
    """The rows that the tiny Llama's training log was measured on."""
    batches: Batches = {}
    for split in ("documents", "openings"):
        packer = Packer(1, split)
        batches[split] = [packer.batch(8, VALIDATION_ROW) for _ in range(VALIDATION_ROWS // 8)]
    return batches


def measure(model: Mixtral, batches: Batches) -> dict[str, Any]:
    """Held-out losses, and for each layer the share of the tokens that each expert has there."""
    losses = {k: round(evaluate(model, v), 4) for k, v in batches.items()}
    counts = torch.stack(
        [mixture.counts for mixture in model.experts()]
    ).float()  # of the last batch
    shares = counts / counts.sum(dim=1, keepdim=True)
    return losses | {"shares": [[round(x, 3) for x in row] for row in shares.tolist()]}


def save(model: Mixtral, folder: Path, log: dict[str, Any]) -> None:
    """Write the checkpoint folder: weights, configuration, tokenizer and `training_log.json`."""
    write_files(folder)
    save_file(model.checkpoint(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "training_log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    """The command line; the shipped checkpoint's is above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument(
        "--start", type=Path, help="go on from this folder, not from the tiny Llama"
    )
    parser.add_argument("--steps", type=int, default=3200, help="length of the schedule")
    parser.add_argument("--stop", type=int, help="end after this many steps of the schedule")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in a step")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=400)
    return parser.parse_args()


def main() -> None:
    """Train and save."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = Mixtral()
    if args.start is None:
        dense = load_file(DENSE / "model.safetensors")
        model.start_from_dense({k.removeprefix("model."): v for k, v in dense.items()})
    else:
        model.start_from_checkpoint(load_file(args.start / "model.safetensors"))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    train = Packer(args.seed, "train")
    held_out = held_out_batches()
    total, active = parameters()
    log: dict[str, Any] = {
        "command": command(args, "tiny_mixtral"),
        "parameters": total,
        "parameters_of_one_token": active,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "safetensors": safetensors.__version__,
        },
        "unit": "nats per predicted token; a token is one byte or a special token",
        "train": [],
        "balance": [],
        "held_out": [[0, measure(model, held_out)]],
    }
    if args.start is not None:
        before = (args.start / "training_log.json").read_text(encoding="utf-8")
        log = {"before": json.loads(before)} | log
    started, processor = time.monotonic(), time.process_time()
    recent = balance_recent = 0.0
    last = args.stop or args.steps
    for step in range(last):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.warm_up)
        # As for the tiny Llama: one step of four has long rows whose documents see those before them.
        long = step % 4 == 3
        row = LONG_ROW if long else ROW
        batch = train.batch(args.tokens // row, row)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, *batch, alone=not long)
        balance = torch.stack([mixture.balance for mixture in model.experts()]).mean()
        # Hugging Face's loss counts a token's two choices, so it is TOP_K times ours.
        (loss + CONFIG["router_aux_loss_coef"] * TOP_K * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"the loss is {loss.item()} at step {step}; try a smaller --lr")
        recent += loss.item()
        balance_recent += balance.item()
        done = step + 1
        if done % args.log_every == 0:
            log["train"].append([done, round(recent / args.log_every, 4)])
            log["balance"].append([done, round(balance_recent / args.log_every, 4)])
            recent = balance_recent = 0.0
            seconds = time.monotonic() - started
            print(
                f"step {done} loss {log['train'][-1][1]} balance {log['balance'][-1][1]} "
                f"{seconds:.0f} s, {time.process_time() - processor:.0f} s of processor time",
                flush=True,
            )
        if done % args.save_every == 0 or done == last:
            log["held_out"].append([done, measure(model, held_out)])
            log["documents_seen"], log["tokens_seen"] = train.documents, train.tokens
            log["wall_seconds"] = round(time.monotonic() - started)
            log["processor_seconds"] = round(time.process_time() - processor)
            print(f"step {done} held out {log['held_out'][-1][1]}", flush=True)
            save(model, args.out, log)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(torch.bfloat16))
    log["final"] = {"train": log["train"][-1][1], "held_out_in_bfloat16": measure(model, held_out)}
    print(f"rounded: {log['final']}", flush=True)
    save(model, args.out, log)


if __name__ == "__main__":
    main()
