"""What real vLLM does with Gil's seed, with the order of the stages, with n children: its CPU build.

    python phase-09-sampling/vllm_sampling.py              all topics
    python phase-09-sampling/vllm_sampling.py neighbours   one

Needs vLLM 0.22.1; its CPU build will do. `neighbours` and `children` are the whole engine on the shipped
Llama, `order` and `paths` are vLLM's own functions on the row of logits of the guide.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draws import PROMPT, kept, letter, row

from course.learner.labs import load_module

PHASES = Path(__file__).resolve().parents[1]
CHECKPOINT = PHASES / "mini_vllm" / "checkpoints" / "tiny-llama"
topics = load_module(PHASES / "phase-05-cuda-graphs/vllm_topics.py", "vllm_topics_for_phase_09")
Say = Callable[[str], None]


def _llm() -> Any:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1"}
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return LLM(
        str(CHECKPOINT), dtype="float32", enforce_eager=True, block_size=16, max_model_len=512,
        distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip


def neighbours(say: Say) -> None:
    """Gil's request with seed 7, alone and beside one of Bo's. The shared stream is set before each."""
    import torch
    from vllm import SamplingParams

    llm = _llm()
    beside: dict[str, list[dict[str, Any]]] = {
        "alone": [],
        "alone again": [],
        "beside a request with seed 8": [{"temperature": 1.0, "seed": 8}],
        "beside one without a seed": [{"temperature": 1.0}],
        "beside a greedy one": [{"temperature": 0.0}],
    }
    for number, (name, others) in enumerate(beside.items()):
        params = [SamplingParams(temperature=1.0, seed=7, max_tokens=40)]
        params += [SamplingParams(max_tokens=40, **other) for other in others]
        prompts = [PROMPT] + ["What is a block?"] * len(others)
        torch.manual_seed(number)
        output = llm.generate(prompts, params, use_tqdm=False)[0]
        say(f"{name:30}{output.outputs[0].text}")


def order(say: Say) -> None:
    """Which letters vLLM's own sampler keeps with min_p 0.2 and top_p 0.8."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    def cut_min_p(logits: Any) -> Any:
        probs = logits.softmax(-1)
        return logits.masked_fill(probs < probs.max(-1, keepdim=True).values * 0.2, -torch.inf)

    def cut_top_p(logits: Any) -> Any:
        return apply_top_k_top_p_pytorch(logits.clone(), None, torch.tensor([0.8]))

    logits = torch.tensor(row())[None]
    say(f"min_p, then top_p, as vLLM: {kept(cut_top_p(cut_min_p(logits))[0].numpy())}")
    say(f"top_p, then min_p:          {kept(cut_min_p(cut_top_p(logits))[0].numpy())}")


def paths(say: Say) -> None:
    """A seeded row beside an unseeded one: what two of vLLM's own paths draw for it, five times."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    sampler = TopKTopPSampler()
    torch.manual_seed(0)
    for name in ("forward_native", "forward_cpu"):
        drawn = []
        for _ in range(5):
            logits = torch.tensor(row()).repeat(2, 1)
            generators = {0: torch.Generator().manual_seed(7)}
            tokens, _ = getattr(sampler, name)(logits, generators, None, None)
            drawn.append(letter(int(tokens[0])))
        say(f"{name:16}{' '.join(drawn)}")


def children(say: Say) -> None:
    """n = 3 with seed 7, and how much of a prompt four children find cached."""
    from vllm import SamplingParams

    llm = _llm()
    for seed, n in ((7, 3), (8, 1)):
        params = SamplingParams(n=n, temperature=1.0, seed=seed, max_tokens=12)
        [output] = llm.generate([PROMPT], params, use_tqdm=False)
        for child in output.outputs:
            say(f"seed {seed}, n={n}, child {child.index}: {child.text!r}")
    for length in (9, 120):
        prompt = {"prompt_token_ids": list(range(10, 10 + length))}
        params = SamplingParams(n=4, temperature=1.0, max_tokens=2)
        [output] = llm.generate([prompt], params, use_tqdm=False)
        say(f"n=4, prompt of {length} tokens: {output.num_cached_tokens} cached")


TOPICS = {"neighbours": neighbours, "order": order, "paths": paths, "children": children}


def main() -> None:
    os.environ |= topics.ON_PAPER | {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    names = topics.wanted(TOPICS)
    if len(names) > 1:  # one topic loads an engine, another draws without one
        topics.each_apart(__file__, names)
        return
    topics.tell(names[0], TOPICS[names[0]])


if __name__ == "__main__":
    main()
