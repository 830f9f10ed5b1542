"""Generated tokens a second: `mini_vllm` beside vLLM's CPU backend and Hugging Face's `generate`.

    python -m benchmarks.generate [--save]

Each engine runs in a process of its own and gets the same prompts: token ids of one length, greedy,
EOS ignored, so that every engine computes the same number of tokens. Rounds alternate between the
engines, the ones that wait are stopped (SIGSTOP), the best round counts. Engines that are not
installed are left out.

`mini_vllm` runs on the kernels of numpy's BLAS that fit the processor: where OpenBLAS does not know it
and would take AVX2's on one with AVX-512, `OPENBLAS_CORETYPE` is set (`--core-type default` leaves it).

vLLM runs twice: eager (`enforce_eager=True`) and compiled, which is its default and takes a minute or
two to load where its cache is cold.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks import machine
from mini_vllm.utils.blas import faster_core_type

MODEL = Path(__file__).parent.parent / "mini_vllm" / "checkpoints" / "tiny-llama"
MAX_MODEL_LEN = 1024


class Generate(Protocol):
    """Run prompts together; returns the outputs' token ids."""

    def __call__(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]: ...


def mini_worker(model: str) -> Generate:
    from mini_vllm import LLM, SamplingParams

    llm = LLM(model, max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False)

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    return generate


def load_vllm(model: str, enforce_eager: bool) -> Any:
    """vLLM's `LLM` on a CPU, in float32 and with blocks as `mini_vllm` has them."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = os.environ["DO_NOT_TRACK"] = "1"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    return LLM(
        model=model, dtype="float32", enforce_eager=enforce_eager, block_size=16,
        max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False,
    )  # fmt: skip


def vllm_worker(model: str, enforce_eager: bool, in_process: bool = False) -> Generate:
    if in_process:  # the engine core in this process; the model still runs in a worker process
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    llm = load_vllm(model, enforce_eager)
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        tokens = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        outputs = llm.generate(tokens, params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    return generate


def hf_worker(model: str) -> Generate:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.no_grad()
    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        out = hf.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens,
            min_new_tokens=max_tokens, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        rows: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return rows

    return generate


WORKERS: dict[str, Callable[[str], Generate]] = {
    "mini_vllm": mini_worker,
    "vLLM eager": partial(vllm_worker, enforce_eager=True),
    "vLLM compiled": partial(vllm_worker, enforce_eager=False),
    "vLLM eager, in-process": partial(vllm_worker, enforce_eager=True, in_process=True),
    "HF": hf_worker,
}


def serve_rounds(make: Callable[[], Callable[[dict[str, Any]], dict[str, Any]]]) -> int:
    """Answer rounds with what `make` makes: a JSON line in, a JSON line out on the real standard output."""
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the replies
    answer = make()
    print(json.dumps({"ready": True}), file=reply, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=reply, flush=True)
    return 0


def worker_main(name: str, model: str) -> int:
    """Serve the rounds of one engine."""

    def make() -> Callable[[dict[str, Any]], dict[str, Any]]:
        generate = WORKERS[name](model)

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            start = time.perf_counter()
            outputs = generate(question["prompts"], question["max_tokens"])
            return {"seconds": time.perf_counter() - start, "outputs": outputs}

        return answer

    return serve_rounds(make)


class Engine:
    """A worker process, stopped while it is not its turn; `env` is added to its environment.

    `module` is run with `--worker NAME --model MODEL`.
    """

    def __init__(
        self, name: str, model: str, env: dict[str, str], module: str = "benchmarks.generate"
    ) -> None:
        self.name = name
        command = [sys.executable, "-W", "ignore", "-m", module, "--worker", name]
        self._process = subprocess.Popen(
            [*command, "--model", model], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True, env=os.environ | env,
        )  # fmt: skip
        self._read()
        self._signal(signal.SIGSTOP)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker {self.name!r} died; run it alone to see why")
        value: dict[str, Any] = json.loads(line)
        return value

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def round(self, prompts: list[list[int]], max_tokens: int) -> tuple[float, list[list[int]]]:
        answer = self.ask({"prompts": prompts, "max_tokens": max_tokens})
        return answer["seconds"], answer["outputs"]

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One line to the worker, one back; it runs no longer than that."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)


def measure(
    names: list[str],
    model: str,
    rounds: int,
    input_len: int,
    output_len: int,
    core_type: str | None,
    module: str = "benchmarks.generate",
    hf_most: int = 1,
) -> list[dict[str, Any]]:
    """A row per number of requests at a time; `names[0]` is what the others are compared with.

    Args:
        core_type: OPENBLAS_CORETYPE for the engines whose name begins with mini_vllm.
        module: whose workers they are.
        hf_most: with more requests than this Hugging Face's `generate` is left out.
    """
    rng = random.Random(0)
    engines = []
    for name in names:
        print(f"starting {name}", file=sys.stderr)
        chosen = core_type is not None and name.startswith("mini_vllm")
        env = {"OPENBLAS_CORETYPE": str(core_type)} if chosen else {}
        engines.append(Engine(name, model, env, module))
    print("measuring", file=sys.stderr, flush=True)
    rows = []
    try:
        for concurrent in (1, 16, 64):
            best: dict[str, float] = {}
            for number in range(rounds + 1):
                prompts = [
                    [1] + [rng.randint(8 + 32, 8 + 126) for _ in range(input_len - 1)]
                    for _ in range(concurrent)
                ]
                answers: dict[str, list[list[int]]] = {}
                for engine in engines:
                    if engine.name == "HF" and concurrent > hf_most:
                        continue
                    seconds, answers[engine.name] = engine.round(prompts, output_len)
                    rate = concurrent * output_len / seconds
                    if number:  # the first round warms up
                        best[engine.name] = max(best.get(engine.name, 0.0), rate)
            row: dict[str, Any] = {"concurrent": concurrent}
            row |= {f"{name} tok/s": best.get(name) for name in names}
            ours = best[names[0]]
            row |= {f"/ {name}": ours / best[name] if name in best else None for name in names[1:]}
            same = [out == answers[names[0]] for name, out in answers.items() if name != names[0]]
            row["same tokens"] = "yes" if all(same) else "no"
            rows.append(row)
    finally:
        for engine in engines:
            engine.close()
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=list(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--model", default=str(MODEL), help="checkpoint folder (the shipped one)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the warm-up (5)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens (64)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens (128)")
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="also vLLM, eager, with its engine core in the calling process",
    )
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/generate.json"
    )
    parser.add_argument(
        "--core-type",
        help="OPENBLAS_CORETYPE for mini_vllm; `default` leaves it (what fits the processor)",
    )
    args = parser.parse_args(argv)
    if args.worker:
        return worker_main(args.worker, args.model)
    names = ["mini_vllm"]
    if importlib.util.find_spec("vllm") is not None:
        names += ["vLLM eager", "vLLM compiled"]
        names += ["vLLM eager, in-process"] if args.in_process else []
    if importlib.util.find_spec("transformers") is not None:
        names.append("HF")
    core_type = None if args.core_type == "default" else args.core_type or faster_core_type()
    if core_type is not None:
        print(f"mini_vllm with OPENBLAS_CORETYPE={core_type}", file=sys.stderr)
    lengths = args.input_len, args.output_len
    rows = measure(names, args.model, args.rounds, *lengths, core_type)
    print(machine.table(rows))
    if args.save:
        command = f"python -m benchmarks.generate --input-len {args.input_len} --output-len {args.output_len}"
        command += f" --core-type {core_type or 'default'}"
        print(machine.save("generate", command, rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
