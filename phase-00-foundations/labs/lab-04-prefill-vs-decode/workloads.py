"""What your functions say about Llama-3-8B: your predictions, and what a batch brings on one GPU.

    python workloads.py [--impl solution|starter|FILE]

Nothing is measured here; it is the arithmetic of the lab.
"""

from __future__ import annotations

import argparse

import hardware

WORKLOADS = {"one reader": (1, 0), "a long prompt": (2048, 0), "a full house": (64, 64 * 8192)}
BATCHES = (1, 8, 64, 295, 296, 2048)


def main() -> None:
    parser = argparse.ArgumentParser(description="The arithmetic of the lab on one H100.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    lab = hardware.load_lab(parser.parse_args().impl)
    gpus = {s["name"]: lab.device_from_datasheet(s) for s in hardware.load_sheets()}
    h100, a100, model = gpus["H100 SXM"], gpus["A100 80GB SXM"], lab.LLAMA_3_8B

    def bound(tokens: int, kv_tokens: int = 0) -> str:
        intensity = lab.arithmetic_intensity(model, tokens, kv_tokens)
        return "memory" if lab.is_memory_bound(h100, intensity) else "compute"

    print(f"{'H100 SXM':14}{'you said':>20}{'your functions say':>24}{'tokens/s':>12}")
    predicted = lab.predictions()
    for name, (tokens, kv_tokens) in WORKLOADS.items():
        seconds = lab.step_time(h100, model, tokens, kv_tokens)
        said = f"{predicted[name].bound}, {predicted[name].milliseconds:.1f} ms"
        derived = f"{bound(tokens, kv_tokens)}, {seconds * 1e3:.1f} ms"
        print(f"{name:14}{said:>20}{derived:>24}{tokens / seconds:12,.0f}")
    print("\ntokens a step, without the cache")
    for tokens in BATCHES:
        rate = tokens / lab.step_time(h100, model, tokens)
        print(f"{tokens:14,}{rate:12,.0f} tokens/s, waits for {bound(tokens)}")
    one = lab.decode_tokens_per_second(a100, model, 1)
    print(f"\n{a100.name}: ridge at {lab.ridge_point(a100):.0f}, one reader {one:.0f} tokens/s")
    print(f"wall of long contexts, 64 requests: {lab.long_context_wall(model, 64):,} tokens each")


if __name__ == "__main__":
    hardware.run(main)
