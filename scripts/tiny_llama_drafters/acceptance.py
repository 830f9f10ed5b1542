"""What real vLLM accepts of each shipped drafter, on prompts that none of the models has seen.

    python -m scripts.tiny_llama_drafters.acceptance
    python -m scripts.tiny_llama_drafters.acceptance --write    # acceptance.json, the committed figures

Needs vLLM 0.22.1 and a CPU. Greedy, float32, all prompts at once, each to its end or to `MAX_TOKENS`.
Every text is compared with vLLM's without speculation, and the counters are vLLM's own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

HERE = Path(__file__).parent
CHECKPOINTS = HERE.parents[1] / "mini_vllm" / "checkpoints"
RESULT = HERE / "acceptance.json"
LISTS = ("prompts_fresh.txt", "prompts_unseen.txt")
MAX_TOKENS = 64
DRAFTS = 3
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 16,
    "max_model_len": 512,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "enable_prefix_caching": False,
    "async_scheduling": False,
    "seed": 0,
}
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "draft_model": {"method": "draft_model", "model": "tiny-llama-draft"},
    "eagle": {"method": "eagle", "model": "tiny-llama-eagle"},
    "eagle3": {"method": "eagle3", "model": "tiny-llama-eagle3"},
}
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def prompts() -> list[str]:
    """The lines of both lists."""
    folder = HERE.parent / "tiny_llama"
    return [x for name in LISTS for x in (folder / name).read_text(encoding="utf-8").splitlines()]


def run(speculative_config: dict[str, Any] | None) -> tuple[list[list[int]], dict[str, Any]]:
    """The tokens of each prompt, and vLLM's counters by their name without `vllm:spec_decode_`."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    if speculative_config is not None:
        speculative_config = speculative_config | {"num_speculative_tokens": DRAFTS}
        if "model" in speculative_config:
            speculative_config["model"] = str(CHECKPOINTS / speculative_config["model"])
    llm = LLM(
        str(CHECKPOINTS / "tiny-llama"),
        speculative_config=speculative_config,
        distributed_executor_backend=UniProcExecutor,
        disable_log_stats=False,
        **SETTINGS,
    )
    sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    outputs = llm.generate(prompts(), sampling, use_tqdm=False)
    prefix = "vllm:spec_decode_"
    counters = {
        metric.name.removeprefix(prefix): getattr(metric, "value", None) or metric.values  # type: ignore[attr-defined]
        for metric in llm.get_metrics()
        if metric.name.startswith(prefix)
    }
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()
    return [list(output.outputs[0].token_ids) for output in outputs], counters


def row(method: str, result: dict[str, Any]) -> str:
    """A line of the table in README.md."""
    drafts, per_position = result["num_drafts"], result["num_accepted_tokens_per_pos"]
    shares = " | ".join(f"{100 * n / drafts:.1f}" for n in per_position)
    length = 1 + result["num_accepted_tokens"] / drafts
    return (
        f"| {method} | {drafts:,} | {result['num_draft_tokens']:,} | "
        f"{result['num_accepted_tokens']:,} | {shares} | {length:.2f} |"
    )


def main() -> None:
    """Run every method whose checkpoint is there, print the table, and with `--write` keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("methods", nargs="*", default=list(METHODS), help="of these alone")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    plain, _ = run(None)
    results = {}
    for method in args.methods:
        texts, counters = run(METHODS[method])
        equal = sum(a == b for a, b in zip(texts, plain, strict=True))
        results[method] = {"speculative_config": METHODS[method]} | {
            name: counters[name] for name in COUNTERS
        }
        results[method]["equal_texts"] = equal
        print(row(method, results[method]), f"{equal} of {len(plain)} texts equal", flush=True)
    if args.write:
        command = "python -m scripts.tiny_llama_drafters.acceptance --write"
        settings = SETTINGS | {"num_speculative_tokens": DRAFTS, "max_tokens": MAX_TOKENS}
        whole = {
            "made": describe() | {"command": command},
            "settings": settings,
            "lists": list(LISTS),
            "prompts": len(plain),
            "tokens": sum(map(len, plain)),
            "methods": results,
        }
        if RESULT.is_file():  # of methods that were not asked for now, what was found before
            before = json.loads(RESULT.read_text(encoding="utf-8"))
            if all(before[key] == whole[key] for key in ("made", "settings", "tokens")):
                whole["methods"] = before["methods"] | results
        RESULT.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
