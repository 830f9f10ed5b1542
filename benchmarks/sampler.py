"""One step of the sampler, from logits to tokens, beside vLLM's CPU sampler.

    python -m benchmarks.sampler [--save]

64 rows of 32,000 tokens, one thread each, the two in turn in one process. A round is a step of one engine and
the same step of the other; the table has the median of each, in milliseconds. Making the metadata is not in
it, as a batch that stays the same keeps it. Each step appends a token to every row's output.

Where vLLM is not installed `mini_vllm` is measured alone. vLLM's functions run as they are written, without
`torch.compile`, and so do its draws for rows without a seed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import machine
from mini_vllm.sample.metadata import SamplingMetadata, make_generator
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "no seed": {},
    "seeds": {"seed": 1},
    "seeds, top-k 50": {"seed": 1, "top_k": 50},
    "seeds, top-p 0.9": {"seed": 1, "top_p": 0.9},
    "seeds, top-k 50, top-p 0.9": {"seed": 1, "top_k": 50, "top_p": 0.9},
    "seeds, min-p 0.05": {"seed": 1, "min_p": 0.05},
    "seeds, penalties": {"seed": 1, "presence_penalty": 0.5, "frequency_penalty": 0.5,
                         "repetition_penalty": 1.2},
}  # fmt: skip
"""What each row asks for; a seed is raised by the row's number."""
NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 200, 200


@dataclass(eq=False)
class Row:
    """A request that samples."""

    sampling_params: SamplingParams
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    generator: Any = field(default=None)


def make_rows(case: dict[str, Any], count: int, vocab: int) -> list[Row]:
    """Rows with a prompt and an output of random tokens."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(count):
        knobs = case | ({"seed": case["seed"] + i} if "seed" in case else {})
        params = SamplingParams(**knobs)
        prompt = rng.integers(0, vocab, NUM_PROMPT_TOKENS).tolist()
        output = rng.integers(0, vocab, NUM_OUTPUT_TOKENS).tolist()
        rows.append(Row(params, prompt, output, make_generator(params)))
    return rows


Step = Callable[[], None]


def mini_step(rows: list[Row], logits: np.ndarray) -> Step:
    """A step of `mini_vllm`'s sampler."""
    sampler, metadata = Sampler(), SamplingMetadata.build(rows, logits.shape[1])

    def step() -> None:
        tokens = sampler(logits, metadata).sampled_token_ids.tolist()
        for row, token in zip(rows, tokens, strict=True):
            row.output_token_ids.append(token)

    return step


def vllm_step(rows: list[Row], logits: np.ndarray) -> Step:
    """A step of vLLM's; the logits that it may write to are copied, as a model would make them anew."""
    import torch
    import vllm
    from vllm.v1.sample.logits_processor import (
        BatchUpdate,
        LogitsProcessors,
        MinPLogitsProcessor,
    )
    from vllm.v1.sample.metadata import SamplingMetadata as Metadata
    from vllm.v1.sample.sampler import Sampler as Theirs

    torch.set_num_threads(1)
    vocab = logits.shape[1]
    params = [row.sampling_params for row in rows]
    first = params[0]
    processors = []
    if first.min_p:
        min_p = MinPLogitsProcessor(vllm.config.VllmConfig(), torch.device("cpu"), False)
        added = [
            (i, vllm.SamplingParams(min_p=p.min_p), row.prompt_token_ids, row.output_token_ids)
            for i, (p, row) in enumerate(zip(params, rows, strict=True))
        ]
        min_p.update_state(BatchUpdate(len(rows), [], added, []))
        processors.append(min_p)
    penalties = (first.presence_penalty, first.frequency_penalty, first.repetition_penalty)
    metadata = Metadata(
        temperature=torch.tensor([p.temperature for p in params]),
        all_greedy=first.temperature == 0,
        all_random=first.temperature > 0,
        top_p=torch.tensor([p.top_p for p in params]) if first.top_p < 1 else None,
        top_k=torch.tensor([p.top_k for p in params]) if first.top_k else None,
        generators={
            i: torch.Generator().manual_seed(p.seed)
            for i, p in enumerate(params)
            if p.seed is not None
        },
        max_num_logprobs=None,
        no_penalties=penalties == (0.0, 0.0, 1.0),
        prompt_token_ids=torch.tensor([row.prompt_token_ids for row in rows]),
        frequency_penalties=torch.tensor([p.frequency_penalty for p in params]),
        presence_penalties=torch.tensor([p.presence_penalty for p in params]),
        repetition_penalties=torch.tensor([p.repetition_penalty for p in params]),
        output_token_ids=[row.output_token_ids for row in rows],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(processors),
    )
    sampler, source = Theirs(), torch.from_numpy(logits)
    scratch = torch.empty((len(rows), vocab))

    def step() -> None:
        scratch.copy_(source)
        tokens = sampler(scratch, metadata).sampled_token_ids[:, 0].tolist()
        for row, token in zip(rows, tokens, strict=True):
            row.output_token_ids.append(token)

    return step


def measure(rows: int, vocab: int, rounds: int) -> list[dict[str, Any]]:
    """A row of the table a case."""
    logits = (np.random.default_rng(1).standard_normal((rows, vocab)) * 3).astype(np.float32)
    makers = {"mini_vllm": mini_step}
    if importlib.util.find_spec("vllm") is not None:
        makers["vLLM"] = vllm_step
    table = []
    for name, case in CASES.items():
        steps = {
            engine: make(make_rows(case, rows, vocab), logits) for engine, make in makers.items()
        }
        times: dict[str, list[float]] = {engine: [] for engine in steps}
        for number in range(rounds + 2):
            for engine, step in steps.items():
                start = time.perf_counter()
                step()
                if number >= 2:  # the first ones warm up
                    times[engine].append(1000 * (time.perf_counter() - start))
        medians = {engine: statistics.median(each) for engine, each in times.items()}
        line: dict[str, Any] = {"case": name}
        line |= {f"{engine}, ms": round(value, 2) for engine, value in medians.items()}
        if "vLLM" in medians:
            line["vLLM / mini_vllm"] = round(medians["vLLM"] / medians["mini_vllm"], 2)
        table.append(line)
    return table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64, help="requests that sample (64)")
    parser.add_argument("--vocab", type=int, default=32_000, help="tokens (32,000)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds after the warm-up (15)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/sampler.json")
    args = parser.parse_args(argv)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if importlib.util.find_spec("torch") is not None:
        import torch

        with torch.compiler.set_stance("force_eager"):
            rows = measure(args.rows, args.vocab, args.rounds)
    else:
        rows = measure(args.rows, args.vocab, args.rounds)
    print(machine.table(rows))
    if args.save:
        command = f"python -m benchmarks.sampler --rows {args.rows} --vocab {args.vocab}"
        print(machine.save("sampler", command, rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
