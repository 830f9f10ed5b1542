"""The shipped EAGLE head in this course's engine: its counters beside vLLM's, and synthetic acceptance.

    python in_engine.py 3                              # 3 speculative tokens, beside what vLLM counted
    python in_engine.py 3 --synthetic 0.9 0.6 0.3      # accept by these rates, whatever was guessed

Needs numpy alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from mini_vllm import LLM, SamplingParams  # noqa: E402

CHECKPOINTS = ROOT / "mini_vllm" / "checkpoints"
RECORD = HERE / "recorded.json"
MAX_TOKENS = 64
PREFIX = "vllm:spec_decode_"


def prompts() -> list[str]:
    """Those of ask_vllm.py."""
    path = ROOT / "scripts" / "tiny_llama" / "prompts_unseen.txt"
    return path.read_text(encoding="utf-8").splitlines()


def run(k: int, texts: list[str], **more: Any) -> tuple[dict[str, Any], list[int]]:
    """Counters by vLLM's names, and the length of each text."""
    llm = LLM(
        CHECKPOINTS / "tiny-llama", max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=512,
        enable_prefix_caching=False, async_scheduling=False, disable_log_stats=False,
        speculative_config={
            "method": "eagle", "model": CHECKPOINTS / "tiny-llama-eagle", "num_speculative_tokens": k,
        } | more,
    )  # fmt: skip
    outputs = llm.generate(texts, SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    counters = {
        metric.name.removeprefix(PREFIX): getattr(metric, "values", None) or metric.value  # type: ignore[attr-defined]
        for metric in llm.get_metrics()
        if metric.name.startswith(PREFIX)
    }
    return counters, [len(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    """Run it and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("k", type=int, nargs="?", default=3, help="speculative tokens")
    parser.add_argument("--synthetic", type=float, nargs="+", metavar="RATE", help="by position")
    args = parser.parse_args()
    if args.synthetic is None:
        counters, _ = run(args.k, prompts())
        print(counters)
        if (kept := json.loads(RECORD.read_text("utf-8"))["runs"].get(str(args.k))) is not None:
            print(kept["counters"], "in vLLM")
        return
    counters, _ = run(
        args.k, prompts(), rejection_sample_method="synthetic",
        synthetic_acceptance_rates=args.synthetic,
    )  # fmt: skip
    print(counters)
    shares = [n / counters["num_drafts"] for n in counters["num_accepted_tokens_per_pos"]]
    print("accepted by position:", *(f"{share:.3f}" for share in shares))


if __name__ == "__main__":
    main()
