"""Given: real vLLM on a CPU, one prompt 1,000 times, with `ngram` and without. Needs vLLM 0.22.1.

    python end_to_end.py

Prints how often the commonest texts of three tokens come, at temperature 0.7, without drafts and with them:
the three commonest of either.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

MODEL = Path(__file__).resolve().parents[3] / "mini_vllm" / "checkpoints" / "tiny-llama"
PROMPT = "the sea and the sea and the sea and the"
REQUESTS = 1000


def count_texts(speculative: bool) -> Counter[tuple[int, ...]]:
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    drafts = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1}
    llm = LLM(
        str(MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        max_model_len=512,
        max_num_seqs=128,
        seed=0,
        gpu_memory_utilization=0.3,
        distributed_executor_backend=UniProcExecutor,
        speculative_config={**drafts, "prompt_lookup_max": 2} if speculative else None,
    )
    asked = SamplingParams(temperature=0.7, max_tokens=3, ignore_eos=True)
    outputs = llm.generate([PROMPT] * REQUESTS, asked, use_tqdm=False)
    return Counter(tuple(output.outputs[0].token_ids) for output in outputs)


def main() -> None:
    os.environ |= {
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    without, with_drafts = count_texts(False), count_texts(True)
    commonest = {text for found in (without, with_drafts) for text, _ in found.most_common(3)}
    print(f"{'tokens':20}{'without drafts':>15}{'with':>7}   of {REQUESTS} each")
    for text in sorted(commonest, key=lambda text: -without[text]):
        print(f"{' '.join(map(str, text)):20}{without[text]:15}{with_drafts[text]:7}")


if __name__ == "__main__":
    sys.exit(main())
