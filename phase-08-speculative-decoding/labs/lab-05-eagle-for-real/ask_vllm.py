"""Ask real vLLM what it accepts of the shipped EAGLE head, and keep the answer.

    python ask_vllm.py 3             # vLLM with 3 speculative tokens: its counters, beside the recorded ones
    python ask_vllm.py --synthetic   # vLLM's CPU build asked to accept by given rates
    python ask_vllm.py --record      # all of it anew, kept in recorded.json

Needs vLLM 0.22.1: its CPU build, or a CUDA build where there is a GPU. What is recorded came from a CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from benchmarks.machine import describe  # noqa: E402

CHECKPOINTS = ROOT / "mini_vllm" / "checkpoints"
TARGET, HEAD = CHECKPOINTS / "tiny-llama", CHECKPOINTS / "tiny-llama-eagle"
RECORD = HERE / "recorded.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1",
}  # fmt: skip
MAX_TOKENS = 64
DRAFTS = (1, 2, 3, 5)
MOST = max(DRAFTS)
NAMES = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def prompts() -> list[str]:
    """Thirty openings that neither the model nor the head has seen in training."""
    path = ROOT / "scripts" / "tiny_llama" / "prompts_unseen.txt"
    return path.read_text(encoding="utf-8").splitlines()


def run(speculative_config: dict[str, Any] | None) -> dict[str, Any]:
    """Tokens of each prompt, steps that had tokens to compute, and the counters of speculative decoding."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(
        str(TARGET), dtype="float32", enforce_eager=True, block_size=16, max_model_len=512,
        max_num_seqs=64, max_num_batched_tokens=4096, enable_prefix_caching=False, async_scheduling=False,
        disable_log_stats=False, distributed_executor_backend=UniProcExecutor,
        speculative_config=speculative_config,
    )  # fmt: skip
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    plain, steps = scheduler.schedule, []

    def counted() -> Any:
        output = plain()
        if output.total_num_scheduled_tokens:
            steps.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = counted
    asked = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    outputs = llm.generate(prompts(), asked, use_tqdm=False)
    prefix = "vllm:spec_decode_"
    counters = {
        metric.name.removeprefix(prefix): getattr(metric, "value", None) or metric.values
        for metric in llm.get_metrics()
        if metric.name.startswith(prefix)
    }
    del llm, scheduler
    cleanup_dist_env_and_memory()
    gc.collect()
    return {
        "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "steps": len(steps),
        "counters": {name: counters[name] for name in NAMES if name in counters},
    }


def with_head(k: int, **more: Any) -> dict[str, Any]:
    """A run with the shipped head and k speculative tokens."""
    return run({"method": "eagle", "model": str(HEAD), "num_speculative_tokens": k, **more})


def right_guesses(texts: list[list[int]]) -> list[list[int]]:
    """After each token of each text: how many guesses in a row the head gets right, `MOST` at most.

    Computed in torch with the head's training module, which runs the chain from every place at once. What
    the target says past the end of a text counts: a guess is judged before anybody looks for an end.
    """
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    from scripts.tiny_llama_drafters.heads import Eagle
    from scripts.tiny_llama_drafters.target import Target

    target, head = Target(), Eagle()
    head.load_state_dict(load_file(HEAD / "model.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    told = []
    for prompt, text in zip(prompts(), texts, strict=True):
        start = tokenizer(prompt).input_ids
        ids = torch.tensor([start + text])
        with torch.no_grad():
            more = target.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=MOST - 1, do_sample=False,
                eos_token_id=None, pad_token_id=0, temperature=None,
            )  # fmt: skip
            states = target.states(more)
            rows = more.shape[1] - MOST - 1  # the last one stands before the text's last token
            state, cache, hits = states.last[:, :rows], [], []
            for p in range(MOST):
                embeds = F.embedding(more[:, 1 + p : 1 + p + rows], target.embedding)
                out, state = head(embeds, state, cache)
                guess = F.linear(out, target.embedding).argmax(-1)
                hits.append(guess == more[:, 2 + p : 2 + p + rows])
        counts = torch.stack(hits).cumprod(0).sum(0)[0]
        told.append(counts[len(start) - 1 :].tolist())
    return told


def record() -> dict[str, Any]:
    """Texts, steps and counters without and with the head, and what the head gets right anywhere."""
    plain = run(None)
    texts = plain["token_ids"]
    runs = {}
    for k in DRAFTS:
        runs[str(k)] = with_head(k)
        same = runs[str(k)].pop("token_ids") == texts
        assert same, f"{k} speculative tokens: other texts than without"
        print(k, runs[str(k)], flush=True)
    right = right_guesses(texts)
    return {
        "made": {
            "command": COMMAND,
            **describe(),
            "settings": f"greedy, float32, at most {MAX_TOKENS} tokens, {len(texts)} prompts at once, V1 "
            "model runner, synchronous scheduling",
        },
        "plain": {"steps": plain["steps"], "tokens": [len(text) for text in texts]},
        "right": right,
        "runs": runs,
    }


def main() -> None:
    """Ask, and print or keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("k", type=int, nargs="?", default=3, help="speculative tokens")
    parser.add_argument("--json", action="store_true", help="steps and counters, for the test")
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    if args.record:
        text = json.dumps(record(), separators=(",", ":"))
        RECORD.write_text(text.replace('],"', '],\n"').replace("]},", "]},\n") + "\n", "utf-8")
    elif args.synthetic:
        rates = [0.9, 0.6, 0.3]
        try:
            told = with_head(
                3, rejection_sample_method="synthetic", synthetic_acceptance_rates=rates
            )
            print(told["steps"], "steps", told["counters"])
        except AssertionError as error:
            print(f"AssertionError: {error}")
    elif args.json:
        told = with_head(args.k)
        print(json.dumps({name: told[name] for name in ("steps", "counters")}))
    else:
        told = with_head(args.k)
        print(told["steps"], "steps", told["counters"])
        if (kept := json.loads(RECORD.read_text("utf-8"))["runs"].get(str(args.k))) is not None:
            print(kept["steps"], "steps", kept["counters"], "recorded")


if __name__ == "__main__":
    main()
