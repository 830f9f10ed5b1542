"""What each idea of a serving engine is worth: one workload, one memory, an idea more in each row.

    python -m benchmarks.ideas           # the table of README.md

32 people ask at once. All prompts begin with the same instruction of 96 tokens, 16 of their own
follow; the answers' lengths are drawn long-tailed, 8 to 192 tokens. The cache holds 1,024 tokens, and
no request may be longer than 512. Who reserves memory for the longest possible request has room for two.

Counted are passes through the model and tokens computed, which no clock can disturb. The engine is
`mini_vllm` in every row: fewer batch slots, or fewer people let in, make the simpler servers of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.step_record import StepRecord

BLOCK, POOL, LONGEST = 16, 1024, 512
RESERVED_SLOTS = POOL // LONGEST
PEOPLE, SHARED, OWN = 32, 96, 16


@dataclass
class Result:
    """What one way of serving took. `first` holds the pass in which each got the first token."""

    passes: int
    tokens: int
    first: list[int]

    @property
    def wait(self) -> float:
        return sum(self.first) / len(self.first)


def requests() -> list[tuple[list[int], int]]:
    """(prompt's token ids, tokens of answer) of each person; the same on every call."""
    rng = random.Random(0)
    shared = [rng.randrange(8, 264) for _ in range(SHARED)]
    lengths = [min(192, max(8, round(math.exp(rng.gauss(3.4, 0.9))))) for _ in range(PEOPLE)]
    return [(shared + [rng.randrange(8, 264) for _ in range(OWN)], n) for n in lengths]


def serve(
    batches: Iterable[list[tuple[list[int], int]]], slots: int, share: bool = False
) -> Result:
    """Run the batches one after the other, each until its last request is done."""
    config = EngineConfig(
        num_gpu_blocks=POOL // BLOCK + 1,  # block 0 is nobody's
        max_model_len=LONGEST, max_num_seqs=slots, enable_prefix_caching=share,
    )  # fmt: skip
    engine = LLMEngine(config=config)
    result, seen = Result(0, 0, []), set[str]()

    def count(record: StepRecord) -> None:
        result.passes += 1
        result.tokens += record.scheduler_output.total_num_scheduled_tokens

    engine.engine_core.step_observers.append(count)
    number = 0
    for batch in batches:
        for prompt, length in batch:
            params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
            number += 1
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.request_id not in seen:
                    seen.add(output.request_id)
                    result.first.append(result.passes)
    return result


def rows() -> Iterator[tuple[str, Result]]:
    people = requests()
    pairs = [people[i : i + RESERVED_SLOTS] for i in range(0, PEOPLE, RESERVED_SLOTS)]
    yield "one at a time", serve([[person] for person in people], 1)
    yield "static batches of two", serve(pairs, RESERVED_SLOTS)
    yield "continuous batching, two slots", serve([people], RESERVED_SLOTS)
    yield "paged cache: blocks on demand", serve([people], PEOPLE)
    yield "prefix caching: blocks shared", serve([people], PEOPLE, share=True)


def main() -> None:
    print(f"{'':32}{'passes':>8}{'tokens computed':>17}{'mean wait':>11}")
    for name, result in rows():
        print(f"{name:32}{result.passes:8,}{result.tokens:17,}{result.wait:11.1f}")


if __name__ == "__main__":
    main()
