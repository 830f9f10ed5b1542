"""Greedy tokens of the tiny Mixtral in transformers and in vLLM's CPU build, and its near ties.

    python -m scripts.tiny_mixtral.compare [FOLDER]

Needs torch, transformers and vLLM 0.22.1; both run in float32. The prompts are those of
`scripts.tiny_llama.evaluate`. A near tie is a token for which the second and the third expert of a layer
have almost the same router logit: a sum in another order may choose the other one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from course.parity.tokens_run import lift_the_fault
from scripts.tiny_llama.evaluate import FOLDER as PROMPTS
from scripts.tiny_llama.evaluate import LISTS

SHIPPED = Path(__file__).parents[2] / "mini_vllm" / "checkpoints" / "tiny-mixtral"
NEW_TOKENS = 64
GAPS = (1e-2, 1e-3, 1e-4, 1e-5)


def prompts() -> list[str]:
    """Every line of the three lists."""
    return [
        line for name in LISTS for line in (PROMPTS / name).read_text(encoding="utf-8").splitlines()
    ]


def in_transformers(folder: Path, ids: list[list[int]]) -> tuple[list[list[int]], torch.Tensor]:
    """The continuation of each prompt, and the router's gaps of all its tokens, `[layers, tokens]`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts, gaps = [], []
    for prompt in ids:
        one = torch.tensor([prompt])
        whole = model.generate(
            one, attention_mask=torch.ones_like(one), max_new_tokens=NEW_TOKENS, do_sample=False
        )
        texts.append(whole[0, len(prompt) :].tolist())
        with torch.no_grad():
            routers = model(whole, output_router_logits=True).router_logits
        best = torch.stack(routers).topk(3, dim=-1).values
        gaps.append(best[..., 1] - best[..., 2])
    return texts, torch.cat(gaps, dim=1)


def in_vllm(folder: Path, ids: list[list[int]]) -> list[list[int]]:
    """The continuation of each prompt, all in one batch and in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    lift_the_fault()
    llm = LLM(
        str(folder), dtype="float32", enforce_eager=True, max_model_len=512,
        distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    asked: list[Any] = [{"prompt_token_ids": prompt} for prompt in ids]
    outputs = llm.generate(
        asked, SamplingParams(temperature=0, max_tokens=NEW_TOKENS), use_tqdm=False
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    """Print how many texts are equal, and the near ties."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?", default=SHIPPED)
    folder = parser.parse_args().folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(prompt).input_ids for prompt in prompts()]
    ours, gaps = in_transformers(folder, ids)
    theirs = in_vllm(folder, ids)
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    tokens = sum(map(len, ours))
    print(f"{equal} of {len(ids)} continuations are equal, {tokens:,} tokens")
    for prompt, a, b in zip(prompts(), ours, theirs, strict=True):
        if a != b:
            print(
                f"{prompt}\n  transformers {tokenizer.decode(a)}\n  vLLM         {tokenizer.decode(b)}"
            )
    print(f"router gaps, {gaps.numel():,} in {gaps.shape[0]} layers; the least is {gaps.min():.1e}")
    for gap in GAPS:
        print(f"  below {gap:.0e}: {int((gaps < gap).sum()):,}")


if __name__ == "__main__":
    main()
