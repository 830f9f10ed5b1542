"""Several engines: their tokens are one engine's and real vLLM's, and so is the engine that each request goes
to, and what engines say that share experts."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from course.parity.tokens import make_prompts
from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.models.checkpoint_formats import MIXTRAL
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of
from tests.engine.helpers.thorough import either

CHILD = ROOT / "tests/engine/helpers/real_vllm/engines_child.py"
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 256,
    "max_model_len": 256,
    "block_size": 32,
    "data_parallel_size": 2,
}
NUM_BLOCKS = 512
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = either(20, 100)
ALONE = 2
Calls = Counter[tuple[str, tuple[int, ...], int]]


class Asked:
    """What came of the same questions here."""

    def __init__(self, folder: Path, prompts: list[list[int]], settings: dict[str, Any]) -> None:
        config = EngineConfig(num_gpu_blocks=NUM_BLOCKS, **settings)
        self.llm = AsyncLLM(LLMEngine(folder, config))
        client: Any = self.llm.engine.core_client
        self.client = client
        self.chosen: list[int] = []
        choose = client.get_core_engine_for_request

        def choose_noted() -> int:
            self.chosen.append(choose())
            return self.chosen[-1]

        client.get_core_engine_for_request = choose_noted
        self.calls: list[Calls] = []
        try:
            self.tokens = asyncio.run(self._ask(prompts))
        finally:
            self.llm.shutdown()

    async def _ask(self, prompts: list[list[int]]) -> list[list[int]]:
        async def ask(number: int, name: str) -> list[int]:
            ids: list[int] = []
            prompt: Any = {"prompt_token_ids": prompts[number]}
            async for output in self.llm.generate(prompt, GREEDY, name):
                ids = list(output.outputs[0].token_ids)
            return ids

        tokens = await asyncio.gather(*(ask(i, str(i)) for i in range(len(prompts))))
        if self.client.in_step:
            before = self._read_calls()
            for i in range(ALONE):
                await ask(i, f"alone-{i}")
                after = self._read_calls()
            self.calls = [new - old for new, old in zip(after, before, strict=True)]
        return tokens

    def _read_calls(self) -> list[Calls]:
        """Of each engine's first rank, once their wave is over."""
        while self.client.engines_running:
            time.sleep(0.01)
        return [ledgers[0]["data"].calls for ledgers in self.client.call_utility("get_ledgers")]


def ask_vllm(
    folder: Path, prompts: list[list[int]], settings: dict[str, Any], alone: int, tmp_path: Path
) -> dict[str, Any]:
    (tmp_path / "said").mkdir()
    job = {
        "model": str(folder), "prompts": prompts, "max_tokens": GREEDY.max_tokens, "alone": alone,
        "settings": settings | {"num_gpu_blocks_override": NUM_BLOCKS}, "folder": str(tmp_path / "said"),
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    printed = output_of(
        CHILD, tmp_path / "job.json", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR",
        VLLM_ALLOW_INSECURE_SERIALIZATION="1", TORCH_COMPILE_DISABLE="1",
    )  # fmt: skip
    theirs: dict[str, Any] = json.loads(
        next(x for x in printed.splitlines() if x.startswith('{"tokens"'))
    )
    return theirs


def one_engines(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    settings = {n: v for n, v in SETTINGS.items() if n != "data_parallel_size"}
    asked: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
    llm = LLM(folder, num_gpu_blocks=NUM_BLOCKS, **settings)
    return [list(o.outputs[0].token_ids) for o in llm.generate(asked, GREEDY, use_tqdm=False)]


@pytest.mark.vllm
def test_engines_of_a_dense_model(tmp_path: Path) -> None:
    prompts = make_prompts(Tokenizer.from_folder(DEFAULT_MODEL).encode, 264, PROMPTS, longest=120)
    theirs = ask_vllm(DEFAULT_MODEL, prompts, SETTINGS, 0, tmp_path)
    ours = Asked(DEFAULT_MODEL, prompts, SETTINGS)
    assert ours.tokens == theirs["tokens"] == one_engines(DEFAULT_MODEL, prompts)
    assert ours.chosen == theirs["chosen"] == [0, 1] * (PROMPTS // 2)


@pytest.mark.vllm
def test_engines_that_share_experts(tmp_path: Path) -> None:
    """Each request that is asked alone takes a wave of 32 steps of both engines: its own steps in one, dummy
    batches in the other, and in both until they ask each other."""
    folder = Path(MIXTRAL)
    prompts = make_prompts(Tokenizer.from_folder(folder).encode, 264, PROMPTS, longest=120)
    settings = SETTINGS | {"enable_expert_parallel": True}
    theirs = ask_vllm(folder, prompts, settings, ALONE, tmp_path)
    ours = Asked(folder, prompts, settings)
    assert ours.tokens == theirs["tokens"] == one_engines(folder, prompts)
    for engine, calls in enumerate(ours.calls):
        vllms = {
            (kind, tuple(shape), n): times
            for kind, shape, n, times in theirs["calls"][f"{engine}-0"]
        }
        assert calls == vllms, f"engine {engine}"
        assert calls["all_reduce", (4, 2), 32] == ALONE * 32
        print(
            f"engine {engine}: {calls.total()} calls, {sum(c[2] * n for c, n in calls.items())} bytes"
        )
