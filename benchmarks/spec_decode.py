"""Speculative decoding on the shipped Llama: steps, tokens per step and tokens per second, with and without.

    python -m benchmarks.spec_decode [--save]

`mini_vllm` and vLLM's CPU backend (eager, everything in one process), each once without drafts and once for
each method: n-grams, and the shipped draft model and EAGLE head where they are there. Every one is a process
of its own with the same prompts: the beginnings of texts that neither model nor drafter was trained on.
Greedy, EOS ignored, synchronous scheduling. Rounds alternate, those that wait are stopped (SIGSTOP), the best
round counts. `/ without` is the speedup over the same engine without drafts, `CPU / without` the same by the
processor time of all threads, which a busy machine disturbs less. Steps, rows and acceptance are counts of
one round, and the same in each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import generate, machine
from mini_vllm.utils.blas import faster_core_type

CHECKPOINTS = generate.MODEL.parent
BATCHES = (1, 4, 16, 64)
Round = Callable[[list[list[int]], int], list[list[int]]]
DRAFTERS = {
    "draft_model": CHECKPOINTS / "tiny-llama-draft",
    "eagle": CHECKPOINTS / "tiny-llama-eagle",
}


def methods() -> list[str]:
    """Those that can run here."""
    return ["ngram", *(name for name, folder in DRAFTERS.items() if folder.is_dir())]


def speculative_config(method: str, num_speculative_tokens: int) -> dict[str, Any] | None:
    """As both engines take it; None: no drafts."""
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": num_speculative_tokens}
    if method == "none":
        return None
    if method == "ngram":
        return config | {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    return config | {"model": str(DRAFTERS[method])}


class Tally:
    """Counts a scheduler's steps that compute something, and their rows.

    Args:
        scheduler: of either engine; its `schedule` is wrapped.
    """

    def __init__(self, scheduler: Any) -> None:
        self.steps = self.rows = 0
        schedule = scheduler.schedule

        def counted(*args: Any, **kwargs: Any) -> Any:
            plan = schedule(*args, **kwargs)
            if plan.total_num_scheduled_tokens:
                self.steps += 1
                self.rows += plan.total_num_scheduled_tokens
            return plan

        scheduler.schedule = counted


def _counters(metrics: list[Any]) -> dict[str, Any]:
    """The counters of drafts by vLLM's names, since the start; of either engine's `get_metrics`."""
    found = {}
    for metric in metrics:
        if metric.name.startswith("vllm:spec_decode"):
            value = getattr(metric, "value", None)
            found[metric.name] = metric.values if value is None else value
    return found


def mini_worker(config: dict[str, Any] | None) -> tuple[Any, Any]:
    """The engine, and its scheduler."""
    from mini_vllm import LLM

    llm = LLM(
        generate.MODEL, max_model_len=generate.MAX_MODEL_LEN, enable_prefix_caching=False,
        speculative_config=config, disable_log_stats=False,
    )  # fmt: skip
    return llm, llm.llm_engine.engine_core.scheduler


def vllm_worker(config: dict[str, Any] | None) -> tuple[Any, Any]:
    """The same of vLLM."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = os.environ["TORCH_COMPILE_DISABLE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = os.environ["DO_NOT_TRACK"] = "1"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(
        model=str(generate.MODEL), dtype="float32", enforce_eager=True, block_size=16,
        max_model_len=generate.MAX_MODEL_LEN, enable_prefix_caching=False,
        distributed_executor_backend=UniProcExecutor, speculative_config=config,
        disable_log_stats=False,
    )  # fmt: skip
    core: Any = llm.llm_engine.engine_core
    return llm, core.engine_core.scheduler


def worker_main(name: str, num_speculative_tokens: int) -> int:
    """Serve rounds: a JSON line in, a JSON line out on the real standard output."""
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the replies
    engine, method = name.split(":")
    config = speculative_config(method, num_speculative_tokens)
    llm, scheduler = (mini_worker if engine == "mini_vllm" else vllm_worker)(config)
    run, tally = partial(_generate, engine, llm), Tally(scheduler)
    print(json.dumps({"ready": True}), file=reply, flush=True)
    for line in sys.stdin:
        round_ = json.loads(line)
        before, steps, rows = _counters(llm.get_metrics()), tally.steps, tally.rows
        start, cpu = time.perf_counter(), time.process_time()
        outputs = run(round_["prompts"], round_["max_tokens"])
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        answer = {
            "seconds": seconds, "cpu": cpu, "outputs": outputs, "steps": tally.steps - steps,
            "rows": tally.rows - rows, "before": before, "after": _counters(llm.get_metrics()),
        }  # fmt: skip
        print(json.dumps(answer), file=reply, flush=True)
    return 0


def _generate(engine: str, llm: Any, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    if engine == "mini_vllm":
        from mini_vllm import SamplingParams

        inputs: Any = prompts
        params: Any = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    else:
        from vllm import SamplingParams as VllmParams
        from vllm.inputs import TokensPrompt

        inputs = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        params = VllmParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    outputs = llm.generate(inputs, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


class Engine(generate.Engine):
    """A worker process whose rounds bring counts, too."""

    def ask(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self._signal(signal.SIGSTOP)
        return answer


def read_prompts(most: int, input_len: int) -> list[list[int]]:
    """The first tokens of texts that were held out of all training."""
    from mini_vllm.compress.evaluate import HELD_OUT, load_documents

    documents = [ids for ids in load_documents(HELD_OUT, generate.MODEL) if len(ids) >= input_len]
    if len(documents) < most:
        raise SystemExit(f"{len(documents)} texts of {input_len} tokens, and {most} are asked for")
    return [ids[:input_len] for ids in documents[:most]]


def measure(
    names: list[str],
    prompts: list[list[int]],
    rounds: int,
    output_len: int,
    num_speculative_tokens: int,
    core_type: str | None,
) -> list[dict[str, Any]]:
    """A row for each engine, method and batch. `names` are engine:method, those without drafts first."""
    os.environ["SPEC_DECODE_TOKENS"] = str(num_speculative_tokens)
    engines = []
    for name in names:
        print(f"starting {name}", file=sys.stderr)
        ours = core_type is not None and name.startswith("mini_vllm")
        env = {"OPENBLAS_CORETYPE": str(core_type)} if ours else {}
        engines.append(Engine(name, str(generate.MODEL), env, "benchmarks.spec_decode"))
    rows = []
    try:
        for batch in BATCHES:
            best: dict[str, float] = {}
            least: dict[str, float] = {}  # of processor time
            answers: dict[str, dict[str, Any]] = {}
            for number in range(rounds + 1):
                for engine in engines:
                    answer = answers[engine.name] = engine.ask(prompts[:batch], output_len)
                    rate = batch * output_len / answer["seconds"]
                    if number:  # the first round warms up
                        best[engine.name] = max(best.get(engine.name, 0.0), rate)
                        cpu = answer["cpu"]
                        least[engine.name] = min(least.get(engine.name, cpu), cpu)
            rows += [make_row(name, batch, best, least, answers) for name in names]
            print(f"batch {batch} measured", file=sys.stderr, flush=True)
    finally:
        for engine in engines:
            engine.close()
    return sorted(
        rows, key=lambda row: (row["engine"], names.index(f"{row['engine']}:{row['method']}"))
    )


def make_row(
    name: str,
    batch: int,
    best: dict[str, float],
    least: dict[str, float],
    answers: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """One line of the table; what no drafts have is None."""
    engine, method = name.split(":")
    answer, without = answers[name], answers[f"{engine}:none"]
    tokens = sum(map(len, answer["outputs"]))
    plain = zip(answer["outputs"], answers["mini_vllm:none"]["outputs"], strict=True)
    row: dict[str, Any] = {
        "engine": engine, "method": method, "concurrent": batch, "tok/s": best[name],
        "/ without": best[name] / best[f"{engine}:none"],
        "CPU / without": least[f"{engine}:none"] / least[name], "steps": answer["steps"],
        "steps / without": answer["steps"] / without["steps"],
        "tokens / step": tokens / answer["steps"], "rows / step": answer["rows"] / answer["steps"],
        "acceptance length": None, "acceptance %": None, "by position %": None,
        "other texts": sum(mine != reference for mine, reference in plain),
    }  # fmt: skip
    counts = {
        key: _minus(value, answer["before"].get(key)) for key, value in answer["after"].items()
    }
    drafts = counts.get("vllm:spec_decode_num_drafts")
    if method != "none" and drafts:
        accepted = counts["vllm:spec_decode_num_accepted_tokens"]
        row["acceptance length"] = 1 + accepted / drafts
        row["acceptance %"] = 100 * accepted / counts["vllm:spec_decode_num_draft_tokens"]
        by_position = counts["vllm:spec_decode_num_accepted_tokens_per_pos"]
        row["by position %"] = " ".join(f"{100 * count / drafts:.0f}" for count in by_position)
    return row


def _minus(after: Any, before: Any) -> Any:
    if isinstance(after, list):
        return [a - b for a, b in zip(after, before or [0] * len(after), strict=True)]
    return after - (before or 0)


def find_limits(rows: list[dict[str, Any]]) -> dict[str, int]:
    """For each engine and method the largest batch at which it and all smaller ones are faster; 0: none."""
    found: dict[str, int] = {}
    for row in rows:
        if row["method"] == "none":
            continue
        name = f"{row['engine']}, {row['method']}"
        smaller = [batch for batch in BATCHES if batch < row["concurrent"]]
        if row["/ without"] > 1 and found.get(name, 0) == max(smaller, default=0):
            found[name] = row["concurrent"]
        found.setdefault(name, 0)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the warm-up (3)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens (64)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens (128)")
    parser.add_argument("--num-speculative-tokens", type=int, default=3, help="k (3)")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/spec-decode.json"
    )
    args = parser.parse_args(argv)
    if args.worker:
        return worker_main(args.worker, int(os.environ["SPEC_DECODE_TOKENS"]))
    names = [f"mini_vllm:{method}" for method in ("none", *methods())]
    if importlib.util.find_spec("vllm") is not None:
        names += [f"vLLM:{method}" for method in ("none", *methods())]
    core_type = faster_core_type()
    prompts = read_prompts(max(BATCHES), args.input_len)
    k = args.num_speculative_tokens
    rows = measure(names, prompts, args.rounds, args.output_len, k, core_type)
    limits = find_limits(rows)
    print(machine.table(rows))
    for name, batch in limits.items():
        print(f"{name}: pays up to {batch} requests" if batch else f"{name}: does not pay")
    if args.save:
        command = (
            f"python -m benchmarks.spec_decode --input-len {args.input_len} --output-len "
            f"{args.output_len} --num-speculative-tokens {k}"
        )
        load = os.getloadavg()[0]
        print(machine.save("spec-decode", command, rows, pays_up_to=limits, load_average=load))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
