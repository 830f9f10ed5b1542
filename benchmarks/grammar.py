"""What rules cost: compile, first mask, fill, and a batch with 1 to 64 bound requests; here and in vLLM.

    python -m benchmarks.grammar [--save]

`mini_vllm` with its three backends, and vLLM's CPU build (eager, its core in this process, its model in a
worker process) with two. The rule is a list of at least eight tickets of phase 12's schema, so no request is
done before `max_tokens`. Each round has rules of its own (a property differs): nothing is compiled yet.
Bound requests of a round share their rule.

    compile ms      in the thread, of the round's one rule, once
    first mask ms   compile, and the first fill, of rows that were never filled before
    fill us         a row of a step
    fill ms         all rows of a step
    step ms         a step: wall time of the round by its number of steps, of which the first is a prefill
    / free          speed beside the same engine with no request bound
    hidden          the part of the fill that does not lengthen the step: 1 - (step - free step) / fill, never
                    below 0. What else a rule costs, applying and accepting, makes it smaller.

Greedy, synchronous scheduling. Rounds alternate, others are stopped (SIGSTOP); of compile, first mask
and fill the median counts, of steps the best round; the first round is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import generate, machine
from mini_vllm.utils.blas import faster_core_type

BOUND = (0, 1, 4, 16, 64)
BATCH = 64
ENGINES = (
    "mini_vllm:native",
    "mini_vllm:xgrammar",
    "mini_vllm:guidance",
    "vLLM:xgrammar",
    "vLLM:guidance",
)

Question = dict[str, Any]


def make_rule(number: int) -> dict[str, Any]:
    """A list of eight tickets or more; with another `number`, another rule."""
    names = ("item", "urgent", f"days{number}")
    types: tuple[dict[str, Any], ...] = (
        {"type": "string", "maxLength": 12}, {"type": "boolean"}, {"type": "integer"},
    )  # fmt: skip
    ticket = {
        "type": "object", "properties": dict(zip(names, types, strict=True)),
        "required": list(names), "additionalProperties": False,
    }  # fmt: skip
    return {"type": "array", "items": ticket, "minItems": 8}


class Stopwatch:
    """Times the calls of a manager's methods."""

    def __init__(self, manager: Any, compile_name: str) -> None:
        self.compiles: list[float] = []
        self.fills: list[float] = []
        self.rows = 0
        self._wrap(manager, compile_name, self._note_compile)
        self._wrap(manager, "grammar_bitmask", self._note_fill)

    def _wrap(self, manager: Any, name: str, note: Callable[[float, Any], None]) -> None:
        inner = getattr(manager, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            made = inner(*args, **kwargs)
            note(time.perf_counter() - start, made)
            return made

        setattr(manager, name, timed)

    def _note_compile(self, seconds: float, made: Any) -> None:
        self.compiles.append(seconds)

    def _note_fill(self, seconds: float, made: Any) -> None:
        if made is not None:
            self.fills.append(seconds)
            self.rows += len(made)

    def read(self) -> dict[str, Any]:
        """What was timed since the last reading."""
        # The others find what the first has compiled, or wait for it: the longest is that one.
        compiled = max(self.compiles, default=None)
        found = {
            "compile": compiled, "first": None if compiled is None else compiled + self.fills[0],
            "fill": sum(self.fills) / len(self.fills) if self.fills else None,
            "row": sum(self.fills) / self.rows if self.rows else None,
        }  # fmt: skip
        self.compiles, self.fills, self.rows = [], [], 0
        return found


def mini_worker(backend: str) -> tuple[Any, Stopwatch, Any]:
    import mini_vllm
    from mini_vllm.structured_output.scheduling import GrammarScheduling

    llm = mini_vllm.LLM(
        generate.MODEL,
        max_model_len=generate.MAX_MODEL_LEN,
        enable_prefix_caching=False,
        structured_outputs_config={"backend": backend},
    )
    core = llm.llm_engine.engine_core
    core.grammars = grammars = core.make_grammars()
    assert isinstance(grammars, GrammarScheduling)
    return llm, Stopwatch(grammars.manager, "_compile"), mini_vllm


def vllm_worker(backend: str) -> tuple[Any, Stopwatch, Any]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = os.environ["TORCH_COMPILE_DISABLE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = os.environ["DO_NOT_TRACK"] = "1"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import vllm

    llm = vllm.LLM(
        model=str(generate.MODEL), dtype="float32", enforce_eager=True, block_size=16,
        max_model_len=generate.MAX_MODEL_LEN, enable_prefix_caching=False, async_scheduling=False,
        structured_outputs_config={"backend": backend},
    )  # fmt: skip
    manager = llm.llm_engine.engine_core.engine_core.structured_output_manager
    return llm, Stopwatch(manager, "_create_grammar"), vllm


WORKERS = {"mini_vllm": mini_worker, "vLLM": vllm_worker}


def worker_main(name: str) -> int:
    """Serve the rounds of one engine."""
    engine, backend = name.split(":")

    def make() -> Callable[[Question], dict[str, Any]]:
        llm, watch, library = WORKERS[engine](backend)

        def answer(question: Question) -> dict[str, Any]:
            prompts: Any = question["prompts"]
            if engine == "vLLM":
                prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
            rule = make_rule(question["rule"])
            asked = [
                library.SamplingParams(
                    temperature=0,
                    max_tokens=question["max_tokens"],
                    ignore_eos=True,
                    structured_outputs=library.sampling_params.StructuredOutputsParams(json=rule)
                    if number < question["bound"]
                    else None,
                )
                for number in range(len(prompts))
            ]
            start = time.perf_counter()
            outputs = llm.generate(prompts, asked, use_tqdm=False)
            seconds = time.perf_counter() - start
            tokens = [list(output.outputs[0].token_ids) for output in outputs]
            return {"seconds": seconds, "outputs": tokens, **watch.read()}

        return answer

    return generate.serve_rounds(make)


def measure(
    engines: list[str], rounds: int, input_len: int, output_len: int, core_type: str | None
) -> list[dict[str, Any]]:
    """A row for each engine and number of bound requests."""
    rng = random.Random(0)
    prompts = [
        [1] + [rng.randint(8 + 32, 8 + 126) for _ in range(input_len - 1)] for _ in range(BATCH)
    ]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    workers: list[generate.Engine] = []
    try:
        for name in engines:
            print(f"starting {name}", file=sys.stderr)
            ours = core_type is not None and name.startswith("mini_vllm")
            env = {"OPENBLAS_CORETYPE": str(core_type)} if ours else {}
            workers.append(generate.Engine(name, str(generate.MODEL), env, "benchmarks.grammar"))
        for number in range(rounds + 1):  # the first round warms up
            for worker in workers:
                for bound in BOUND:
                    answer = worker.ask({
                        "prompts": prompts, "max_tokens": output_len, "bound": bound,
                        "rule": len(BOUND) * number + BOUND.index(bound),
                    })  # fmt: skip
                    if number:
                        found.setdefault((worker.name, bound), []).append(answer)
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    finally:
        for worker in workers:
            worker.close()
    return make_rows(found, output_len)


def make_rows(
    found: dict[tuple[str, int], list[dict[str, Any]]], steps: int
) -> list[dict[str, Any]]:
    """The table; "other texts" counts outputs that differ from vLLM's with the same backend."""

    def median(answers: list[dict[str, Any]], name: str, unit: float) -> float | None:
        values = [answer[name] for answer in answers if answer[name] is not None]
        return unit * statistics.median(values) if values else None

    def best(key: tuple[str, int]) -> float:
        return float(min(answer["seconds"] for answer in found[key])) / steps

    rows = []
    for (name, bound), answers in found.items():
        engine, backend = name.split(":")
        fill = median(answers, "fill", 1e3)
        step, free = 1e3 * best((name, bound)), 1e3 * best((name, 0))
        theirs = found.get((f"vLLM:{backend}", bound)) if engine != "vLLM" else None
        row: dict[str, Any] = {
            "engine": engine, "backend": backend, "bound": bound,
            "compile ms": median(answers, "compile", 1e3),
            "first mask ms": median(answers, "first", 1e3),
            "fill us": median(answers, "row", 1e6), "fill ms": fill, "step ms": step,
            "/ free": free / step,
            "hidden": None if fill is None else min(1.0, max(0.0, 1 - (step - free) / fill)),
            "other texts": None,
        }  # fmt: skip
        if theirs is not None:
            pairs = zip(answers[-1]["outputs"], theirs[-1]["outputs"], strict=True)
            row["other texts"] = sum(ours != other for ours, other in pairs)
        rows.append(row)
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the warm-up (5)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens (64)")
    parser.add_argument("--output-len", type=int, default=64, help="output tokens (64)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/grammar.json")
    args = parser.parse_args(argv)
    if args.worker:
        return worker_main(args.worker)
    libraries = {"vLLM": "vllm", "xgrammar": "xgrammar", "guidance": "llguidance"}
    engines = [
        name
        for name in ENGINES
        if all(importlib.util.find_spec(libraries[p]) for p in name.split(":") if p in libraries)
    ]
    lengths = args.input_len, args.output_len
    rows = measure(engines, args.rounds, *lengths, faster_core_type())
    print(machine.table(rows))
    if args.save:
        command = (
            f"python -m benchmarks.grammar --input-len {args.input_len} "
            f"--output-len {args.output_len} --rounds {args.rounds}"
        )
        print(
            machine.save("grammar", command, rows, requests=BATCH, load_average=os.getloadavg()[0])
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
