"""Several ranks: their tokens are one rank's and real vLLM's at the same split, and so is what they say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from course.parity.tokens import make_prompts
from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.models.checkpoint_formats import MIXTRAL
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of
from tests.engine.helpers.thorough import either

CHILD = ROOT / "tests/engine/helpers/real_vllm/ranks_child.py"
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 256,
    "max_model_len": 256,
    "block_size": 32,
}
NUM_BLOCKS = 512
MAX_TOKENS = 12
PROMPTS = 100
TP2, PP2 = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}
SPLITS: dict[str, tuple[Path, dict[str, Any]]] = {
    "tp 2, pp 2": (DEFAULT_MODEL, TP2 | PP2),
    "ep 2": (Path(MIXTRAL), TP2 | {"enable_expert_parallel": True}),
    "tp 4": (DEFAULT_MODEL, {"tensor_parallel_size": 4}),
    "tp 2": (DEFAULT_MODEL, TP2),
    "pp 2": (DEFAULT_MODEL, PP2),
}
Calls = Counter[tuple[str, str, tuple[int, ...], int]]


def answers(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    greedy = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    asked: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [list(o.outputs[0].token_ids) for o in llm.generate(asked, greedy, use_tqdm=False)]


def run_ranks(
    folder: Path, prompts: list[list[int]], split: dict[str, Any]
) -> tuple[list[list[int]], list[Calls], list[tuple[int, int]]]:
    """Tokens, each rank's calls, and of each step how many requests it had and how many it gave a token."""
    llm = LLM(folder, num_gpu_blocks=NUM_BLOCKS, **SETTINGS, **split)
    core: Any = llm.llm_engine.engine_core
    rows: list[tuple[int, int]] = []
    update = core.scheduler.update_from_output

    def take_in(plan: Any, output: Any) -> Any:
        if plan.num_scheduled_tokens:
            rows.append((len(plan.num_scheduled_tokens), sum(map(bool, output.sampled_token_ids))))
        return update(plan, output)

    core.scheduler.update_from_output = take_in
    try:
        tokens = answers(llm, prompts)
        ledgers = core.model_executor.collective_rpc("get_ledgers")
    finally:
        core.shutdown()
    calls: list[Calls] = []
    for of_rank in ledgers:
        mine: Calls = Counter()
        for group, ledger in of_rank.items():
            for (kind, shape, nbytes), times in ledger.calls.items():
                mine[group, kind, shape, nbytes] += times
        calls.append(mine)
    return tokens, calls, rows


def head_gathers(calls: Calls) -> Calls:
    """Those of logits: two axes, where a stage's input that is put together again has one."""
    return Counter({c: n for c, n in calls.items() if c[1] == "all_gather" and len(c[2]) == 2})


@pytest.mark.vllm
@pytest.mark.parametrize("name", either(["tp 2, pp 2"], list(SPLITS)))
def test_tokens_and_ledgers_equal_vllms(name: str, tmp_path: Path) -> None:
    """The calls are the same in number, shape and bytes, but for one thing: vLLM makes logits for every
    request of a step, and `mini_vllm` none for a prompt that goes on, whose token would be dropped
    (`vllm/v1/worker/gpu_model_runner.py:2135 in GPUModelRunner._prepare_inputs`)."""
    folder, split = SPLITS[name]
    prompts = make_prompts(Tokenizer.from_folder(folder).encode, 264, PROMPTS, longest=120)
    settings = SETTINGS | split | {"num_gpu_blocks_override": NUM_BLOCKS}
    job = {"model": str(folder), "prompts": prompts, "max_tokens": MAX_TOKENS, "settings": settings}
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    printed = output_of(
        CHILD, tmp_path / "job.json", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="ERROR", VLLM_ALLOW_INSECURE_SERIALIZATION="1", TORCH_COMPILE_DISABLE="1",
    )  # fmt: skip
    theirs = json.loads(next(x for x in printed.splitlines() if x.startswith('{"tokens"')))
    tokens, ours, rows = run_ranks(folder, prompts, split)
    assert tokens == theirs["tokens"]
    assert tokens == answers(LLM(folder, num_gpu_blocks=NUM_BLOCKS, **SETTINGS), prompts)
    assert any(sampled < requests for requests, sampled in rows), "no prompt came in chunks"
    assert len(ours) == len(theirs["calls"])
    for rank, (mine, of_rank) in enumerate(zip(ours, theirs["calls"], strict=True)):
        vllms: Calls = Counter({(g, k, tuple(shape), size): n for g, k, shape, size, n in of_rank})
        logits = [head_gathers(calls) for calls in (mine, vllms)]
        assert mine - logits[0] == vllms - logits[1], f"rank {rank}"
        for gathers, count in zip(logits, zip(*[r[::-1] for r in rows], strict=True), strict=True):
            wanted = Counter(n for n in count if n) if gathers else Counter()
            assert Counter({shape[0]: n for (_, _, shape, _), n in gathers.items()}) == wanted
        if "tensor_parallel_size" in split and rank >= len(ours) - split["tensor_parallel_size"]:
            assert logits[0], "the last stage has the head"
        print(f"{name}, rank {rank}: {vllms.total()} calls, {_nbytes(vllms)} bytes")


def _nbytes(calls: Calls) -> int:
    return sum(call[3] * times for call, times in calls.items())
