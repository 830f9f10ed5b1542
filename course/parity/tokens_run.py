"""Run the same prompts through `mini_vllm` or real vLLM, each in a process of its own.

    python -m course.parity.tokens_run ENGINE JOB ANSWER

is that process: ENGINE is `mini_vllm` or `vllm`, JOB and ANSWER are JSON files. `course.parity.tokens`
starts it and compares what comes back. The two engines are called by the very same lines.

One thread an engine, unless OMP_NUM_THREADS says otherwise: where other work shares the cores, BLAS
threads that wait for each other cost far more than they bring on a model this small.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

TOP = 2
"""How many of the most likely tokens come back with each position."""


@dataclass
class Scenario:
    """One run of prompts: with which settings, and whether together or one by one."""

    name: str
    settings: dict[str, Any]
    prompts: list[list[int]]
    max_tokens: list[int]
    alone: bool = False
    sampling: list[dict[str, Any]] | None = None
    """What each prompt asks of the sampler; None: greedy."""
    top: int = TOP


@dataclass
class Completion:
    """What one engine made of one prompt. `top` is, per position, the best tokens and logprobs."""

    token_ids: list[int]
    logprobs: list[float]
    top: list[dict[int, float]]
    finish_reason: str | None
    num_cached_tokens: int | None


@dataclass
class Result:
    """One engine's answer to a `Scenario`. `seconds` is the time of generation alone."""

    completions: list[Completion]
    preemptions: int
    seconds: float
    drafts: dict[str, Any] = field(default_factory=dict)
    """With speculation, what the engine's metrics counted: by name, without `vllm:spec_decode_num_`."""


def run_scenarios(
    model: str,
    scenarios: Sequence[Scenario],
    real: bool,
    attention: str = "numpy",
    keep_stale_tables: bool = False,
) -> list[Result]:
    """Run scenarios through `vllm.LLM` (`real`) or `mini_vllm.LLM` with `attention`.

    With speculation vLLM's block tables are cleared when a row gets another request, unless
    `keep_stale_tables`; see `clear_stale_tables`.

    Scenarios that follow each other with the same settings share an engine, and so its cache.
    """
    llm: Any = None
    settings: dict[str, Any] | None = None
    before, drafts_before = 0, {}
    results = []
    speculates = any("speculative_config" in scenario.settings for scenario in scenarios)
    if real and speculates and not keep_stale_tables:
        clear_stale_tables()
    for scenario in scenarios:
        if scenario.settings != settings:
            settings = scenario.settings
            llm, before = _make_llm(model, settings, real, attention), 0
            drafts_before = _drafts(llm)
        knobs = scenario.sampling or [{"temperature": 0}] * len(scenario.prompts)
        params = [
            llm.params(max_tokens=max_tokens, logprobs=scenario.top, **llm.read(asked))
            for max_tokens, asked in zip(scenario.max_tokens, knobs, strict=True)
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in scenario.prompts]
        start = time.perf_counter()
        if scenario.alone:
            outputs = [
                llm.generate(prompt, param, use_tqdm=False)[0]
                for prompt, param in zip(prompts, params, strict=True)
            ]
        else:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        after, drafts_after = llm.preemptions(), _drafts(llm)
        completions = [_completion(output) for output in outputs]
        drafts = {
            name: [a - b for a, b in zip(counts, drafts_before[name], strict=True)]
            for name, counts in drafts_after.items()
        }
        results.append(Result(completions, after - before, seconds, drafts))
        before, drafts_before = after, drafts_after
    return results


def _drafts(llm: Any) -> dict[str, list[int]]:
    """What the engine has counted of drafts; nothing without speculation."""
    if not llm.counts_drafts:
        return {}
    prefix = "vllm:spec_decode_num_"
    return {
        metric.name.removeprefix(prefix): list(getattr(metric, "values", None) or [metric.value])
        for metric in llm.get_metrics()
        if metric.name.startswith(prefix)
    }


def lift_the_fault() -> None:
    """Let a mixture run where vLLM's grouped kernel is missing (no AVX-512, or sizes that are no multiples
    of 32): there its SiLU is made of a class that asks for a configuration which nobody has set.

    docs/FOUND_IN_VLLM.md, 6. Nothing changes where the kernel is.
    """
    import torch
    from torch.nn.functional import silu
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe

    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return silu(gate) * up

    functions = cpu_fused_moe._CPU_MOE_ACT_FN
    functions[next(kind for kind in functions if kind.name == "SILU")] = silu_and_mul


def clear_stale_tables() -> None:
    """Let a row of vLLM's block table end where its request's blocks do.

    A row keeps what is past the blocks that it is given: block ids of the requests that it had before. A
    drafter that runs past the end of a request which was just admitted writes there,
    docs/FOUND_IN_VLLM.md, 13. Tokens stay right; some drafts of the requests that hold those blocks do not.
    """
    from vllm.v1.worker.block_table import BlockTable

    add_row, move_row = BlockTable.add_row, BlockTable.move_row

    def add_row_cleared(self: Any, block_ids: list[int], row_idx: int) -> None:
        self.block_table.np[row_idx] = 0
        add_row(self, block_ids, row_idx)

    def move_row_cleared(self: Any, src: int, tgt: int) -> None:
        self.block_table.np[tgt] = 0
        move_row(self, src, tgt)

    BlockTable.add_row, BlockTable.move_row = add_row_cleared, move_row_cleared


def _make_llm(model: str, settings: dict[str, Any], real: bool, attention: str) -> Any:
    """An `LLM`, with `params`, its `SamplingParams`, and `preemptions()` (since its start) added."""
    llm: Any
    settings = copy.deepcopy(settings)  # vLLM writes into `speculative_config`
    counts_drafts = "speculative_config" in settings
    if counts_drafts:
        settings["disable_log_stats"] = False
    if real:
        import vllm
        from vllm.platforms import current_platform
        from vllm.v1.executor import UniProcExecutor

        if current_platform.is_cpu():
            lift_the_fault()
        llm = vllm.LLM(
            model=model,
            dtype="float32",
            enforce_eager=True,
            block_size=16,
            async_scheduling=settings.pop("async_scheduling", False),
            distributed_executor_backend=UniProcExecutor,  # else a worker's process imports vLLM again
            **settings,
        )
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        count = [0]
        preempt = scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            return preempt(*args, **kwargs)

        if "structured_outputs_config" in settings:  # a request is ready when it is first looked at
            engine_core = llm.llm_engine.engine_core.engine_core
            engine_core.structured_output_manager._use_async_grammar_compilation = False
        scheduler._preempt_request = counted
        llm.preemptions = lambda: count[0]
        params: Any = vllm.SamplingParams
        rule: Any = vllm.sampling_params.StructuredOutputsParams
    else:
        import mini_vllm

        if attention == "triton":
            _interpret_without_a_gpu()
        if settings.get("async_scheduling") and not settings.pop("two_in_flight", False):
            # vLLM computes a plan where it hands it over, and finds the result there at once.
            wait = mini_vllm.EngineParts(done_early=lambda future: future.result() is not None)
            settings["parts"] = wait
        llm = mini_vllm.LLM(model, block_size=16, attention=attention, **settings)
        core = llm.llm_engine.engine_core
        llm.preemptions = lambda: core.scheduler.num_preemptions
        params, rule = mini_vllm.SamplingParams, mini_vllm.StructuredOutputsParams
        if "structured_outputs_config" in settings:
            core.grammars = core.make_grammars()
            core.grammars.manager.in_background = False
    llm.counts_drafts = counts_drafts
    llm.params = params
    llm.read = partial(_read, rule)
    return llm


def _read(rule: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What a prompt asks of the sampler, with its rule, if it has one, as the engine takes it."""
    read = dict(asked)
    if "structured_outputs" in asked:
        read["structured_outputs"] = rule(**asked["structured_outputs"])
    if "logit_bias" in asked:  # JSON made texts of the ids
        read["logit_bias"] = {int(token): bias for token, bias in asked["logit_bias"].items()}
    return read


def _interpret_without_a_gpu() -> None:
    """Let Triton's kernels run on the CPU where there is nothing else. Before Triton is imported."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def _completion(output: Any) -> Completion:
    one = output.outputs[0]
    return Completion(
        token_ids=list(one.token_ids),
        logprobs=[p[t].logprob for p, t in zip(one.logprobs, one.token_ids, strict=True)],
        top=[{int(t): entry.logprob for t, entry in p.items()} for p in one.logprobs],
        finish_reason=one.finish_reason,
        num_cached_tokens=output.num_cached_tokens,
    )


def run_engine(
    engine: str,
    model: str,
    scenarios: Sequence[Scenario],
    attention: str = "numpy",
    keep_stale_tables: bool = False,
) -> list[Result]:
    """Run scenarios through `engine`, `mini_vllm` or `vllm`, in a process of its own.

    Raises RuntimeError with the end of that process's output if it fails.
    """
    job = {
        "model": model,
        "scenarios": [asdict(scenario) for scenario in scenarios],
        "attention": attention,
        "keep_stale_tables": keep_stale_tables,
    }
    return [
        Result(
            [
                Completion(**c | {"top": [{int(k): v for k, v in p.items()} for p in c["top"]]})
                for c in result["completions"]
            ],
            result["preemptions"],
            result["seconds"],
            result["drafts"],
        )
        for result in run_worker("course.parity.tokens_run", [engine], job)
    ]


def run_worker(module: str, arguments: Sequence[str], job: Any) -> Any:
    """Run `python -m module *arguments JOB ANSWER` with `job` in JOB; return what ANSWER holds.

    The environment is one in which real vLLM runs offline, on a CPU, in that one process, and
    calls no C++ compiler: a few of its helpers are `torch.compile`d even with `enforce_eager`, which
    takes longer than all the work here.
    Raises RuntimeError with the end of the process's output if it fails.
    """
    root = str(Path(__file__).resolve().parents[2])
    environment = {
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    with tempfile.TemporaryDirectory() as folder:
        job_path, answer_path = Path(folder, "job.json"), Path(folder, "answer.json")
        job_path.write_text(json.dumps(job), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments, str(job_path), str(answer_path)],
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode or not answer_path.is_file():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            raise RuntimeError(
                f"{module} {' '.join(arguments)} ended with status {done.returncode}:\n{tail}"
            )
        return json.loads(answer_path.read_text(encoding="utf-8"))


def main(engine: str, job_path: str, answer_path: str) -> None:
    """Do a job that `run_engine` wrote."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    scenarios = [Scenario(**scenario) for scenario in job["scenarios"]]
    results = run_scenarios(
        job["model"], scenarios, engine == "vllm", job["attention"], job["keep_stale_tables"]
    )
    answer = json.dumps([asdict(result) for result in results])
    Path(answer_path).write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
