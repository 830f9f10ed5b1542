"""Given: what slots take of Noor's card, by your functions.

    python show.py [solution | starter]

ROOM is an assumption: what a card of 80 GB may have left for slots and KV blocks beside the weights of
Llama-3-8B in bf16.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_03_support")
ROOM = 50 * 2**30
QV, ATTENTION, MIB = ("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj"), 2**20


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_11_03_{which}")
    print("a slot, rank 16, bf16      TP  MiB per rank   all ranks  KV tokens")
    for name, ranks in (("Llama-2-7B", (1,)), ("Llama-3-8B", (1, 2)), ("Llama-3-70B", (1, 8))):
        model = support.model_of(lab, name)
        whole = lab.slot_bytes(model, lab.LoRAConfig(), 1)
        for tp in ranks:
            for sharded in (False, True) if tp > 1 else (False,):
                lora = lab.LoRAConfig(fully_sharded_loras=sharded)
                size = lab.slot_bytes(model, lora, tp)
                title = name + ", fully sharded" * sharded
                tokens = 16 * size / lab.block_bytes(model, tp)
                print(
                    f"{title:26} {tp:2} {size / MIB:13.2f} {size * tp / whole:11.2f} {tokens:10,.0f}"
                )
    model = support.model_of(lab, "Llama-3-8B")
    mine = lab.file_bytes(model, 16, QV, 2) / MIB
    print(f"\nLlama-3-8B, 50 GiB for slots and KV; rank 16 for q and v is {mine:.1f} MiB of file")
    print("                                      16 slots   KV tokens  slots beside")
    print("                                           MiB       left   384,000 tokens")
    for title, rank, targets in (
        ("as vLLM starts", 16, None),
        ("for one tenant of rank 64", 64, None),
        ("q, k, v, o only", 16, ATTENTION),
        ("q and v only", 16, QV),
    ):
        lora = lab.LoRAConfig(16, rank, targets)
        size = 16 * lab.slot_bytes(model, lora, 1) / MIB
        left = 16 * lab.kv_blocks(model, lora, 1, ROOM)
        most = lab.most_slots(model, lora, 1, ROOM, 384_000 // 16)
        print(f"{title:28} rank {rank:2} {size:11,.0f} {left:10,} {most:16,}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
