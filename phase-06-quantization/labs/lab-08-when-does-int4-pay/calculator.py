"""What your functions say of a quantised model on a card: derived, not measured.

    python calculator.py [--impl solution|starter|FILE] [--card NAME] [--model NAME|DIR] [--batch N]
                         [--context N] [--prompt N] [--budget N] [--dequant SHARE] [--kv-bits 16|8]
                         [--group-size N]

A step of each kind (decode, a chunk of a prompt, both in one step), in each scheme: milliseconds, how many
times faster than 16 bits, and which part takes longest and waits for what. It is the least that the card can
take. Launches, activations, norms and sampling are left out, and `--dequant` is yours to set, because no data
sheet has it. A model may be a checkpoint folder, of which only `config.json` is read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm.config.model import LlamaConfig  # noqa: E402

# layers, hidden, mlp, heads, kv_heads, head_size, vocab, tied: from each model's config.json.
SHAPES: dict[str, tuple[int, int, int, int, int, int, int, bool]] = {
    "llama-3.1-8b": (32, 4096, 14336, 32, 8, 128, 128_256, False),
    "llama-3.2-1b": (16, 2048, 8192, 32, 8, 64, 128_256, True),
    "qwen3-8b": (36, 4096, 12288, 32, 8, 128, 151_936, False),
    "mistral-small-24b": (40, 5120, 32768, 32, 8, 128, 131_072, False),
    "llama-2-13b": (40, 5120, 13824, 40, 40, 128, 32_000, False),
}


def load_lab(choice: str | None = None) -> ModuleType:
    """`starter.py` or `solution.py` of this folder, or another path. Without a choice LAB_IMPL decides."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    return load_module(path, "lab_06_08_for_scripts")


def cards(lab: ModuleType) -> dict[str, Any]:
    """The data sheets of lab 00-04 and the 8-bit rates of `tensor_cores.json`, by name."""
    [file] = ROOT.glob("phase-00*/labs/lab-04*/gpus.json")
    eight = {
        entry["name"]: entry
        for entry in json.loads((HERE / "tensor_cores.json").read_text("utf-8"))
    }
    found = {}
    for sheet in json.loads(file.read_text("utf-8")):
        flops = sheet["printed_tflops"] * 1e12 / (2 if sheet["with_sparsity"] else 1)
        gigabytes = sheet.get("bandwidth_gb_s") or sheet["bus_bits"] * sheet["gbit_per_pin"] / 8
        times = [eight[sheet["name"]][key] for key in ("int8_times", "fp8_times")]
        int8, fp8 = (one and one * flops for one in times)
        found[sheet["name"]] = lab.Card(
            sheet["name"], flops, gigabytes * 1e9, int8, fp8, sheet["memory_gb"] * 1e9
        )
    return found


def model_of(lab: ModuleType, name: str) -> Any:
    """One of `SHAPES`, or a Llama's checkpoint folder.

    Raises ValueError for a configuration that `mini_vllm` does not know, OSError.
    """
    if name.lower() in SHAPES:
        return lab.Model(name.lower(), *SHAPES[name.lower()])
    if not Path(name, "config.json").is_file():
        raise ValueError(f"one of {', '.join(SHAPES)}, or a folder with a config.json")
    raw = json.loads(Path(name, "config.json").read_text("utf-8"))
    c = LlamaConfig.from_dict(raw)
    return lab.Model(
        Path(name).name, c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.num_attention_heads,
        c.num_key_value_heads, c.head_dim, c.vocab_size, c.tie_word_embeddings,
    )  # fmt: skip


def bench_seconds(
    lab: ModuleType,
    card: Any,
    model: Any,
    scheme: Any,
    people: int,
    prompt: int,
    answer: int,
    budget: int,
) -> float:
    """Seconds for `people` requests that come at once: all prompts first, then all answers, a token a step.

    vLLM mixes the two, which changes the order of the work and little of its sum. A prompt's step gives its
    first token, so the answers take `answer - 1` steps.

    Raises ValueError for a prompt that does not fit into one step.
    """
    if prompt > budget:
        raise ValueError(f"a prompt of {prompt} tokens does not fit into a step of {budget}")
    seconds, at_once = 0.0, budget // prompt
    for first in range(0, people, at_once):
        chunk = [lab.Request(prompt)] * min(at_once, people - first)
        seconds += lab.step_seconds(card, model, scheme, chunk)
    for cached in range(prompt, prompt + answer - 1):
        seconds += lab.step_seconds(card, model, scheme, [lab.Request(1, cached)] * people)
    return seconds


def tables(lab: ModuleType, card: Any, model: Any, schemes: list[Any], args: Any) -> None:
    """Prints one table a kind of step, and what holds for the card and the model."""
    steps = {
        f"{args.batch} decode, {args.context:,} tokens of context each": [
            lab.Request(1, args.context)
        ]
        * args.batch,
        f"{min(args.prompt, args.budget):,} tokens of a prompt": lab.mixed_step(
            0, 0, args.prompt, args.budget
        ),
        f"both, within {args.budget:,} tokens": lab.mixed_step(
            args.batch, args.context, args.prompt, args.budget
        ),
    }
    kv = args.kv_bits / 8
    for title, step in steps.items():
        tokens = sum(request.new for request in step)
        print(f"\n{title}: {tokens:,} tokens in the step")
        print("scheme         ms  linears   head  attention  times faster  longest, and waits for")
        base = lab.step_seconds(card, model, lab.FP16, step, kv)
        for scheme in schemes:
            found = lab.parts(card, model, scheme, step, kv)
            ms = [1e3 * max(found[name]) for name in ("linears", "head", "attention")]
            total = lab.step_seconds(card, model, scheme, step, kv)
            part, waits = lab.regime(card, model, scheme, step, kv)
            print(
                f"{scheme.name:10} {1e3 * total:6.1f}   {ms[0]:6.1f} {ms[1]:6.1f}     {ms[2]:6.1f}"
                f"          {base / total:4.2f}  {part}, {waits}"
            )
    print("\n            GB    people at once  full gain up to  no faster from")
    for scheme in schemes:
        room = lab.people_at_once(card, model, scheme, max(args.context, 1), kv)
        full, none = lab.full_gain_until(card, scheme), lab.break_even(card, scheme)
        if scheme.bits == 16 or scheme.unpacks_first:
            gain = f"{'':15}  {f'{none} tokens' if scheme.unpacks_first else '':>14}"
        else:
            gain = f"{full:8,} tokens  {f'{none:,} tokens' if none else 'never':>14}"
        size = lab.resident_bytes(model, scheme) / 1e9
        print(f"{scheme.name:10} {size:5.1f}  {room:12,}  {gain}".rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description="When a quantised model pays, derived.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    parser.add_argument("--card", default="L4", help="a name of lab 00-04's gpus.json (L4)")
    parser.add_argument("--model", default="llama-3.1-8b", help=f"{', '.join(SHAPES)}, or a folder")
    parser.add_argument("--batch", type=int, default=64, help="requests that decode (64)")
    parser.add_argument("--context", type=int, default=1000, help="tokens each has (1000)")
    parser.add_argument("--prompt", type=int, default=8000, help="of one that comes (8000)")
    parser.add_argument("--budget", type=int, default=2048, help="max_num_batched_tokens (2048)")
    parser.add_argument("--dequant", type=float, default=0.0, help="share of the product (0)")
    parser.add_argument("--kv-bits", type=int, default=16, choices=(8, 16), help="of the cache")
    parser.add_argument("--group-size", type=int, default=128, help="weights to a scale (128)")
    args = parser.parse_args()
    for name, least in (("batch", 1), ("context", 0), ("prompt", 1), ("group_size", 1)):
        if getattr(args, name) < least:
            option = "--" + name.replace("_", "-")
            raise SystemExit(f"{option} must be at least {least}, got {getattr(args, name)}")
    if args.budget < args.batch:
        raise SystemExit(f"--budget {args.budget} is less than a token for each of {args.batch}")
    if not 0 <= args.dequant < math.inf:
        raise SystemExit(f"--dequant must be 0 or more, got {args.dequant}")
    lab = load_lab(args.impl)
    known = {name.lower(): card for name, card in cards(lab).items()}
    matches = [card for name, card in known.items() if name.startswith(args.card.lower())]
    if len(matches) != 1:
        names = ", ".join(card.name for card in known.values())
        raise SystemExit(f"--card {args.card!r}: one of {names}")
    [card] = matches
    try:
        model = model_of(lab, args.model)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--model {args.model}: {error}") from None
    bits = lab.bits_per_weight(4, args.group_size)
    int4 = lab.Scheme("w4a16", bits, dequant=args.dequant)
    schemes = [lab.FP16, int4, lab.Scheme("unpacked", bits, unpacks_first=True)]
    schemes.append(dataclasses.replace(lab.FP8, dequant=0.0 if card.fp8 else args.dequant))
    if card.int8 is not None:
        schemes.append(lab.W8A8)
    print(
        f"{model.name} on {card.name}: {card.flops / 1e12:g} TFLOP/s, {card.bandwidth / 1e9:,.0f} GB/s"
    )
    print(
        f"derived, not measured; dequantising adds {args.dequant:.0%} to a product of 4-bit weights"
    )
    tables(lab, card, model, schemes, args)


if __name__ == "__main__":
    run_script(main)
