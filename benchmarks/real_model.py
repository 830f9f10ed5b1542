"""Prompt and output tokens a second at real size: `mini_vllm` beside vLLM's CPU backend and Hugging Face.

    python -m benchmarks.real_model [--model smollm2 | qwen3-0.6b] [--save]
    python -m benchmarks.real_model --load [--model smollm2 | qwen3-0.6b]

`smollm2` is SmolLM2-135M-Instruct; `qwen3-0.6b` has the shape of Qwen3-0.6B and random weights in bfloat16,
written to a temporary folder. All engines compute in float32, greedily, on prompts of random tokens. They
run in processes of their own, in turn, and those that wait are stopped.

Prefill is what the prompts' tokens take until every request has its first token. Decode is what follows,
until the first request is done: all of them make a token in each step. The best round counts.

Beside each stands its roof, the most that this machine could do if it read nothing but the weights and the KV
cache, and computed nothing but the products: for a decode step requests / max(bytes / bandwidth, operations /
peak), for a prompt peak / operations of a token. Bandwidth and peak are measured, on all cores: a product of
a matrix of 256 MiB and a vector, and one of two matrices of 2,048 by 2,048.

vLLM's worker leaves one core to its other processes, so on two cores it computes on one. `vLLM eager` is what
one gets without asking; with "all cores" VLLM_CPU_NUM_OF_RESERVED_CPU=0 is set.

`--load` prints what loading takes: seconds, and the process's peak beyond what it had before, beside the
bytes of the weights in float32.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.generate import MAX_MODEL_LEN, Engine, load_vllm, serve_rounds
from mini_vllm.model_loader.loader import load_config, tensors_of_layers
from mini_vllm.model_loader.names import find_model
from mini_vllm.utils.blas import faster_core_type

SHAPES = {
    "smollm2": {64: (1, 4, 16, 64), 512: (1, 4, 16)},
    "qwen3-0.6b": {64: (1, 4, 16, 64), 512: (1, 4)},
}
"""Requests at a time, by the prompts' length. Each vLLM's worker grows to 6 GB, so with 24 GB run the larger
shapes (`--shape 512x64`) with two engines at a time."""
HF_MOST = 16
"""With more requests than this Hugging Face's `generate` is left out."""
KV_CACHE_GIB = {"smollm2": "2", "qwen3-0.6b": "2"}
"""Enough for all requests at a time; `mini_vllm` and vLLM get the same."""

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}

Stamps = list[tuple[float, int, int]]
"""After each step: seconds since the start, requests with a token, tokens in all."""
Run = Callable[[list[list[int]], int], tuple[Stamps, list[list[int]]]]


def write_random(folder: Path) -> None:
    """A folder in Qwen3-0.6B's shape: random weights in bfloat16, and SmolLM2's tokenizer, never asked."""
    (folder / "config.json").write_text(json.dumps(QWEN3), encoding="utf-8")
    donor = find_model("smollm2")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((donor / name).read_bytes())
    rng = np.random.default_rng(0)
    hidden, vocab = 1024, 151936
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    shapes |= {name: parameter.shape for name, parameter in tensors_of_layers(load_config(folder))}
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            scale = np.float32(0.02)
            values = rng.standard_normal(shape, np.float32) * scale + (len(shape) == 1)
            file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())


# -- the engines ----------------------------------------------------------------------------------


def step_by_step(engine: Any, make_prompt: Callable[[list[int]], Any], params: Any) -> Run:
    """Runs of an engine that has `add_request` and `step`, as ours and vLLM's have."""

    def run(prompts: list[list[int]], max_tokens: int) -> tuple[Stamps, list[list[int]]]:
        start = time.perf_counter()
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), make_prompt(prompt), params(max_tokens))
        tokens: dict[str, list[int]] = {}
        stamps: Stamps = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
            total = sum(map(len, tokens.values()))
            if not stamps or total > stamps[-1][2]:
                stamps.append((time.perf_counter() - start, len(tokens), total))
        return stamps, [tokens[str(i)] for i in range(len(prompts))]

    return run


def mini_worker(model: str) -> Run:
    from mini_vllm import LLM, SamplingParams

    llm = LLM(
        model,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=int(os.environ["VLLM_CPU_KVCACHE_SPACE"]) * 2**30,
    )
    return step_by_step(
        llm.llm_engine,
        lambda prompt: {"prompt_token_ids": prompt},
        lambda count: SamplingParams(temperature=0, max_tokens=count, ignore_eos=True),
    )


def vllm_worker(model: str, enforce_eager: bool, all_cores: bool) -> Run:
    if all_cores:
        os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    llm = load_vllm(model, enforce_eager)
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    return step_by_step(
        llm.llm_engine,
        lambda prompt: TokensPrompt(prompt_token_ids=prompt),
        lambda count: SamplingParams(temperature=0, max_tokens=count, ignore_eos=True),
    )


def hf_worker(model: str) -> Run:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.no_grad()
    def run(prompts: list[list[int]], max_tokens: int) -> tuple[Stamps, list[list[int]]]:
        ids = torch.tensor(prompts)
        stamps: Stamps = []
        start = time.perf_counter()

        def note(made: Any, scores: Any, **more: Any) -> Any:
            count = len(prompts) * (made.shape[1] - ids.shape[1])
            stamps.append((time.perf_counter() - start, len(prompts), count))
            return torch.zeros(len(prompts), dtype=torch.bool)

        out = hf.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens,
            min_new_tokens=max_tokens, eos_token_id=None, pad_token_id=0, stopping_criteria=[note],
        )  # fmt: skip
        return stamps, out[:, ids.shape[1] :].tolist()

    return run


WORKERS: dict[str, Callable[[str], Run]] = {
    "mini_vllm": mini_worker,
    "mini_vllm, one thread": mini_worker,
    "vLLM eager": partial(vllm_worker, enforce_eager=True, all_cores=False),
    "vLLM eager, all cores": partial(vllm_worker, enforce_eager=True, all_cores=True),
    "vLLM compiled, all cores": partial(vllm_worker, enforce_eager=False, all_cores=True),
    "HF": hf_worker,
}


def rates(
    stamps: Stamps, num_requests: int, prompt_tokens: int, max_tokens: int
) -> tuple[float, float]:
    """Prompt tokens and output tokens a second."""
    some, all_ = (
        next(i for i, (_, begun, _) in enumerate(stamps) if begun >= n) for n in (1, num_requests)
    )
    last = min(some + max_tokens, len(stamps)) - 1  # where those that began first are done
    assert last > all_, f"{max_tokens} output tokens are too few: some end before all have begun"
    (begin, _, before), (end, _, after) = stamps[all_], stamps[last]
    return prompt_tokens / begin, (after - before) / (end - begin)


def worker_main(name: str, model: str) -> int:
    """Serve the rounds of one engine."""

    def make() -> Callable[[dict[str, Any]], dict[str, Any]]:
        run = WORKERS[name](model)

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            prompts, max_tokens = question["prompts"], question["max_tokens"]
            stamps, outputs = run(prompts, max_tokens)
            prefill, decode = rates(stamps, len(prompts), sum(map(len, prompts)), max_tokens)
            return {"prefill": prefill, "decode": decode, "outputs": outputs}

        return answer

    return serve_rounds(make)


# -- the roofs ------------------------------------------------------------------------------------


def measure_machine() -> tuple[float, float]:
    """Bytes a second that a product with a vector reads, and operations a second of one with a matrix."""
    matrix = np.ones((16384, 4096), np.float32)
    vector = np.ones(4096, np.float32)
    bandwidth = max(matrix.nbytes / seconds for seconds in timed(lambda: matrix @ vector))
    square = np.ones((2048, 2048), np.float32)
    peak = max(2 * 2048**3 / seconds for seconds in timed(lambda: square @ square))
    return bandwidth, peak


def timed(function: Callable[[], object], times: int = 6) -> Iterator[float]:
    for _ in range(times):
        start = time.perf_counter()
        function()
        yield time.perf_counter() - start


def roofs(
    folder: Path, requests: int, context: int, machine: tuple[float, float]
) -> tuple[float, float]:
    """Prompt and output tokens a second at most, for prompts of `context` tokens."""
    config = load_config(folder)
    bandwidth, peak = machine
    layers = sum(int(np.prod(p.shape)) for _, p in tensors_of_layers(config))
    head = config.vocab_size * config.hidden_size
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    read = 4 * (layers + head + requests * context * kv)
    operations = 2 * (layers + head) + attention * context
    decode = requests / max(read / bandwidth, requests * operations / peak)
    prefill = peak / (2 * layers + attention * context / 2)  # half: no token sees later ones
    return prefill, decode


# -- what is printed ------------------------------------------------------------------------------


def measure(
    names: list[str],
    model: str,
    folder: Path,
    rounds: int,
    output_len: int,
    core_type: str | None,
    power: tuple[float, float],
    shapes: dict[int, tuple[int, ...]],
) -> list[dict[str, Any]]:
    """A row for each number of requests and length of prompts; `names[0]` is compared with the others."""
    print(f"{power[0] / 1e9:.1f} GB/s, {power[1] / 1e9:.0f} GFLOP/s", file=sys.stderr)
    vocab_size = load_config(folder).vocab_size
    rng = random.Random(0)
    rows = []
    with ExitStack() as stack:
        engines = []
        for name in names:
            print(f"starting {name}", file=sys.stderr)
            env = {"VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB[model]}
            if core_type is not None and name.startswith("mini_vllm"):
                env["OPENBLAS_CORETYPE"] = core_type
            if name == "mini_vllm, one thread":
                env["OPENBLAS_NUM_THREADS"] = "1"
            engines.append(Engine(name, str(folder), env, "benchmarks.real_model"))
            stack.callback(engines[-1].close)
        for engine in engines:
            engine.ask({"prompts": [list(range(100, 164))] * 4, "max_tokens": 8})  # warms up
        for input_len, counts in shapes.items():
            for count in counts:
                here = [engine for engine in engines if engine.name != "HF" or count <= HF_MOST]
                best = {
                    (engine.name, what): 0.0 for engine in here for what in ("prefill", "decode")
                }
                answers: dict[str, Any] = {}
                for _ in range(rounds if count * input_len < 4096 else 1):
                    prompts = [
                        [rng.randrange(100, vocab_size - 300) for _ in range(input_len)]
                        for _ in range(count)
                    ]
                    # Prompts that do not fit into the first step begin later; yet all shall decode together.
                    max_tokens = output_len + 2 * -(-count * input_len // 2048)
                    for engine in here:
                        answer = engine.ask({"prompts": prompts, "max_tokens": max_tokens})
                        answers[engine.name] = answer["outputs"]
                        for what in ("prefill", "decode"):
                            key = engine.name, what
                            best[key] = max(best[key], answer[what])
                same = [answer == answers[names[0]] for answer in answers.values()]
                top = dict(
                    zip(("prefill", "decode"), roofs(folder, count, input_len, power), strict=True)
                )
                for what in ("prefill", "decode"):
                    row: dict[str, Any] = {"prompt": input_len, "requests": count, "": what}
                    row |= {f"{name} tok/s": best.get((name, what)) for name in names}
                    ours = best[names[0], what]
                    for name in names[1:]:
                        theirs = best.get((name, what))
                        row[f"/ {name}"] = ours / theirs if theirs else None
                    row |= {"roof tok/s": top[what], "/ roof": ours / top[what]}
                    row["same tokens"] = "yes" if all(same) else "no"
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def load(folder: Path) -> int:
    """Print what loading the model takes."""
    import resource  # Windows has none

    from mini_vllm.model_loader.loader import load_model

    config = load_config(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    load_model(folder)
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    weights = sum(int(np.prod(p.shape)) for _, p in tensors_of_layers(config))
    weights += config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    print(
        f"{seconds:.1f} s, peak {peak / 2**30:.2f} GiB, weights in float32 {4 * weights / 2**30:.2f} GiB"
    )
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=list(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--model", default="smollm2", help="smollm2, or qwen3-0.6b (smollm2)")
    parser.add_argument(
        "--rounds", type=int, default=2, help="rounds of prompts below 4,096 tokens (2)"
    )
    parser.add_argument("--output-len", type=int, default=24, help="steps in which all decode (24)")
    parser.add_argument("--engines", help="names, by `;` (all but 'mini_vllm, one thread')")
    parser.add_argument("--load", action="store_true", help="what loading takes")
    parser.add_argument(
        "--shape",
        help="tokens of a prompt x requests, 512x64 for example (all but what needs most)",
    )
    parser.add_argument(
        "--save",
        nargs="?",
        const="",
        metavar="NAME",
        help="write benchmarks/results/NAME.json (the model's)",
    )
    args = parser.parse_args(argv)
    if args.worker:
        return worker_main(args.worker, args.model)
    if args.model not in SHAPES:
        parser.error(f"--model must be one of {', '.join(SHAPES)}, got {args.model!r}")
    shapes = SHAPES[args.model]
    if args.shape:
        length, _, count = args.shape.partition("x")
        shapes = {int(length): (int(count),)}
    names = ["mini_vllm"]
    if importlib.util.find_spec("vllm") is not None:
        names += [name for name in WORKERS if name.startswith("vLLM")]
    if importlib.util.find_spec("transformers") is not None:
        names.append("HF")
    if args.engines:
        names = args.engines.split(";")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if args.model == "smollm2":
            folder = find_model("smollm2")
        else:
            print("writing random weights", file=sys.stderr)
            write_random(folder)
        if args.load:
            return load(folder)
        core_type = faster_core_type()
        power = measure_machine()
        rows = measure(
            names, args.model, folder, args.rounds, args.output_len, core_type, power, shapes
        )
    print(machine.table(rows))
    if args.save is not None:
        command = shlex.join(["python", "-m", "benchmarks.real_model", *(argv or sys.argv[1:])])
        measured = dict(zip(("bytes/s", "operations/s"), power, strict=True))
        print(machine.save(args.save or args.model, command, rows, roofs=measured))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
