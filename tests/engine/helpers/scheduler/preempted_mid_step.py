"""A victim that was already scheduled in the same step, on `vllm` or on `mini_vllm`: what it then says.

`low` is a prompt of 96 tokens, computed in chunks of 32, and unimportant. `high`, 32 tokens, arrives
one step later and needs a block for its first output in the step in which `low` has just been given
the last two. So `low` is preempted, and two blocks of its prompt, already published, stay uncomputed.

As a program (see `course.parity.tokens_run.run_worker`) it keeps real vLLM in a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.tokenizer import Tokenizer

LOW = "The KV cache stores the keys and values of all tokens read so far. With it, a decode step has to "
HIGH = "A block table maps the positions of a request to the blocks that hold them."
SETTINGS: dict[str, Any] = {
    "block_size": 16,
    "max_model_len": 128,
    "long_prefill_token_threshold": 32,
    "scheduling_policy": "priority",
}
ENGINES = ("mini_vllm", "upstream_scheduler", "vllm")
Situation = dict[str, Any]


def _engine(engine: str, settings: Situation) -> tuple[Any, Any]:
    """An engine with `add_request` and `step`, and its `SamplingParams`."""
    if engine == "vllm":
        import vllm
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        settings = dict(settings)
        settings["num_gpu_blocks_override"] = settings.pop("num_gpu_blocks")
        llm = vllm.LLM(
            str(DEFAULT_MODEL),
            dtype="float32",
            enforce_eager=True,
            async_scheduling=False,
            distributed_executor_backend=UniProcExecutor,
            **settings,
        )
        return llm.llm_engine, vllm.SamplingParams
    import mini_vllm

    parts = EngineParts(scheduler=UpstreamScheduler) if engine != "mini_vllm" else DEFAULT_PARTS
    config = mini_vllm.EngineConfig(**settings)
    return mini_vllm.LLMEngine(config=config, parts=parts), mini_vllm.SamplingParams


def play(engine: str, situations: list[Situation]) -> list[dict[str, Any]]:
    """Per situation: every request's text by id, `low`'s logprobs, and who was preempted, in order.

    A situation: `num_gpu_blocks`, `enable_prefix_caching`; `before`, a prompt that somebody with
    another `cache_salt` than `low` had computed and finished first, or None; `high`: does it come?
    """
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    answers = []
    for situation in situations:
        settings = {k: situation[k] for k in ("num_gpu_blocks", "enable_prefix_caching")}
        llm_engine, params_type = _engine(engine, SETTINGS | settings)
        victims = _note_preemptions(llm_engine)
        texts: dict[str, str] = {}
        logprobs: list[float] = []

        def add(
            name: str, token_ids: list[int], salt: str, priority: int, max_tokens: int,
            llm_engine: Any = llm_engine, params_type: Any = params_type,
        ) -> None:  # fmt: skip
            prompt = {"prompt_token_ids": token_ids, "cache_salt": salt}
            params = params_type(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=0)
            llm_engine.add_request(name, prompt, params, priority=priority)

        def step(
            llm_engine: Any = llm_engine,
            texts: dict[str, str] = texts,
            logprobs: list[float] = logprobs,
        ) -> None:
            for output in llm_engine.step():
                one = output.outputs[0]
                texts[output.request_id] = one.text
                if output.request_id == "low":
                    pairs = zip(one.logprobs, one.token_ids, strict=True)
                    logprobs[:] = [by_id[token_id].logprob for by_id, token_id in pairs]

        if situation["before"] is not None:
            add("before", tokenizer.encode(situation["before"])[:127], "another", 0, 1)
            while llm_engine.has_unfinished_requests():
                step()
        add("low", tokenizer.encode(LOW)[-96:], "low's", 5, 24)
        step()
        if situation["high"]:
            add("high", tokenizer.encode(HIGH)[:32], "another", 0, 16)
        while llm_engine.has_unfinished_requests():
            step()
        answers.append({"texts": texts, "logprobs": logprobs, "preempted": victims})
    return answers


def _note_preemptions(llm_engine: Any) -> list[str]:
    core = llm_engine.engine_core
    scheduler = getattr(core, "engine_core", core).scheduler
    preempt = scheduler._preempt_request
    victims: list[str] = []

    def noted(request: Any, *args: Any) -> None:
        victims.append(str(request.request_id).partition("-")[0])
        preempt(request, *args)

    scheduler._preempt_request = noted
    return victims


if __name__ == "__main__":
    engine, job, answer = sys.argv[1:]
    answers = play(engine, json.loads(Path(job).read_text()))
    Path(answer).write_text(json.dumps(answers))
