"""Do drafts change a token? Run the engine with each method and without, and compare.

    python -m course.parity.drafts [--prompts N] [--max-tokens N] [--seed S]

The seeded prompts of `course.parity.tokens` go through `mini_vllm` alone, greedily: together in chunks with
prefix caching, some of them one by one on what is cached, and some in a KV cache that is too small for all;
without drafts, then with n-grams, with the model as its own draft model, and with the shipped EAGLE head,
with synchronous scheduling and, where the method can, with asynchronous.

A token that differs is a near tie, which rows of another number broke another way, or a fault: it is shown
with both log probabilities. Exit code 0: no token differs, 1: one does. It needs no vLLM.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from course.parity.tokens import Comparison, compare, make_prompts, make_scenarios, report
from course.parity.tokens_run import run_scenarios
from mini_vllm.config.engine import DEFAULT_MODEL

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"prompt_lookup_min": 2, "prompt_lookup_max": 3},
    "draft_model": {"model": str(DEFAULT_MODEL)},
    "eagle": {"model": str(DEFAULT_MODEL.parent / "tiny-llama-eagle")},
}


def run_comparison(
    count: int = 200, max_tokens: int = 24, seed: int = 0, num_speculative_tokens: int = 3
) -> list[Comparison]:
    """One comparison with the engine without drafts for each method, kind of scheduling and scenario."""
    from mini_vllm.model_loader import load_config
    from mini_vllm.tokenizer import Tokenizer

    model = str(DEFAULT_MODEL)
    encode = Tokenizer.from_folder(model).encode
    prompts = make_prompts(encode, load_config(model).vocab_size, count, seed)
    alone = max(count // 5, 1)
    plain = run_scenarios(model, make_scenarios(prompts, alone, max_tokens), real=False)
    found = []
    for method, settings in METHODS.items():
        spec = {
            "method": method,
            "num_speculative_tokens": num_speculative_tokens,
            **settings,
        }
        for ahead in (False, True) if method != "ngram" else (False,):
            scenarios = make_scenarios(
                prompts, alone, max_tokens, speculative_config=spec, async_scheduling=ahead
            )
            for scenario in scenarios:
                if ahead:
                    scenario.settings["two_in_flight"] = True
            drafting = run_scenarios(model, scenarios, real=False)
            for scenario, without, ours in zip(scenarios, plain, drafting, strict=True):
                # Steps, and with them preemptions and prefix hits, are others with drafts.
                without.preemptions, without.drafts = ours.preemptions, ours.drafts
                for one, other in zip(without.completions, ours.completions, strict=True):
                    one.num_cached_tokens = other.num_cached_tokens
                comparison = compare(scenario, ours, without)
                comparison.name = f"{method}{', async' * ahead}, {scenario.name}"
                found.append(comparison)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code is in the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m course.parity.drafts", description="Compare tokens with drafts and without."
    )
    parser.add_argument("--prompts", type=int, default=200, help="prompts in all (200)")
    parser.add_argument("--max-tokens", type=int, default=24, help="tokens for most (24)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (0)")
    args = parser.parse_args(argv)
    if min(args.prompts, args.max_tokens) < 1:
        parser.error("--prompts and --max-tokens must be at least 1")
    found = run_comparison(args.prompts, args.max_tokens, args.seed)
    print(report(found, engines="with drafts and without"))
    return 0 if all(c.equal for c in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
