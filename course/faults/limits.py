"""Two faults of vLLM's at a limit, each by a run of it: a request that cannot end, and a window of no layer.

    python -m course.faults.limits end
    python -m course.faults.limits window

Needs vLLM 0.22.1, and transformers beside it for the window.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from course.faults.cpu import SETTINGS
from mini_vllm.config.engine import DEFAULT_MODEL

MAX_MODEL_LEN = 64
TURNS = 300  # enough for any request of that length
WINDOW = 16
NUM_TOKENS = 60


def start(folder: Path, max_model_len: int) -> Any:
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return LLM(
        str(folder), dtype="float32", enforce_eager=True, block_size=32, max_model_len=max_model_len,
        enable_prefix_caching=False, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip


def end(prompt_len: int) -> list[str]:
    """A prompt with `min_tokens=10`: what vLLM makes of it where 64 tokens are the most, and `mini_vllm`."""
    from vllm import SamplingParams

    from mini_vllm.entrypoints.llm import LLM as MiniLLM
    from mini_vllm.sampling_params import SamplingParams as MiniSamplingParams

    prompt: Any = {"prompt_token_ids": [1] + [40] * (prompt_len - 1)}
    asked: dict[str, Any] = {"temperature": 0.0, "min_tokens": 10, "max_tokens": 10}
    engine = start(DEFAULT_MODEL, MAX_MODEL_LEN).llm_engine
    engine.add_request("0", prompt, SamplingParams(**asked))
    turns, tokens = 0, 0
    while engine.has_unfinished_requests() and turns < TURNS:
        for output in engine.step():
            tokens = len(output.outputs[0].token_ids)
        turns += 1
    ended = "not ended after " if engine.has_unfinished_requests() else ""
    said = [f"prompt {prompt_len}, vLLM: {ended}{turns} turns, {tokens} tokens"]
    mini = MiniLLM(str(DEFAULT_MODEL), max_model_len=MAX_MODEL_LEN)
    try:
        [answer] = mini.generate([prompt], MiniSamplingParams(**asked))
        found = f"{len(answer.outputs[0].token_ids)} tokens"
    except ValueError as error:
        found = f"refused: {error}"
    return [*said, f"prompt {prompt_len}, mini_vllm: {found}"]


def write_gemma(folder: Path) -> Any:
    """A tiny random Gemma 3 whose layers are all full and whose configuration names a window."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    config = Gemma3TextConfig(
        vocab_size=264, hidden_size=96, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, query_pre_attn_scalar=24,
        sliding_window=WINDOW, layer_types=["full_attention"] * 4, bos_token_id=1, eos_token_id=2,
        pad_token_id=None, rope_parameters={"full_attention": rope, "sliding_attention": rope},
    )  # fmt: skip
    model: Any = Gemma3ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:  # attention is to pick out tokens, and the layers are to be heard
            torch.nn.init.normal_(parameter, std=0.03 if "embed" in name else 0.15)
    model.to(torch.float32).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (DEFAULT_MODEL / name).exists():
            shutil.copy(DEFAULT_MODEL / name, folder / name)
    return model.eval()


def window(folder: Path) -> list[str]:
    """Greedy tokens of that model in transformers, in vLLM, and in `mini_vllm`."""
    import torch
    from vllm import SamplingParams

    from mini_vllm.entrypoints.llm import LLM as MiniLLM
    from mini_vllm.sampling_params import SamplingParams as MiniSamplingParams

    model = write_gemma(folder)
    rng = random.Random(0)
    ids = [1] + [rng.randrange(8, 264) for _ in range(39)]
    with torch.no_grad():
        whole = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS,
            eos_token_id=None,
        )[0].tolist()  # fmt: skip
    right = whole[len(ids) :]
    prompt: Any = {"prompt_token_ids": ids}
    asked: dict[str, Any] = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    llm = start(folder, 128)
    [output] = llm.generate([prompt], SamplingParams(**asked), use_tqdm=False)
    [mine] = MiniLLM(str(folder), max_model_len=128).generate([prompt], MiniSamplingParams(**asked))
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    windows = sorted({str(layer.sliding_window) for layer in layers})
    said = [f"layers that are all full, in vLLM: a window of {', '.join(windows)}"]
    for name, answer in (("vLLM", output), ("mini_vllm", mine)):
        pairs = zip(answer.outputs[0].token_ids, right, strict=True)
        others = sum(token != other for token, other in pairs)
        said.append(f"{name}: {others} of {NUM_TOKENS} tokens are not transformers'")
    return said


def main() -> None:
    os.environ |= SETTINGS
    topics = sys.argv[1:] or ["end", "window"]
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        if "end" in topics:
            print("\n".join(end(54) + end(60)))
        if "window" in topics:
            print("\n".join(window(Path(name, "gemma"))))


if __name__ == "__main__":
    main()
