"""What a serving engine's ideas are worth on a real model: SmolLM2-135M-Instruct, asked as a user would ask.

    python -m benchmarks.real_ideas      # the tables of docs/REAL_MODEL.md; two or three minutes

Four tables, each of which changes one thing, greedily, through the model's own chat template: requests
together, a shared instruction, a cache that is too small, and drafts. Passes and tokens are counted, and
hardly depend on the machine; seconds do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.step_record import StepRecord

ROOT = Path(__file__).parent.parent
THINGS = (
    "a bicycle", "a piano", "the moon", "a volcano", "bread", "a lighthouse", "honey", "a glacier",
    "a compass", "chess", "a violin", "the tide", "a beehive", "glass", "a desert", "a kite",
)  # fmt: skip
QUESTIONS = [f"Explain {thing} to a child in a few sentences." for thing in THINGS]
INSTRUCTION = (
    "You answer questions of the visitors of a museum. Be friendly and short. "
    + " ".join(
        f"Hall {i + 1} is about {thing}, and opens at {9 + i % 3}."
        for i, thing in enumerate(THINGS)
    )
    + " If somebody asks for something else, say that the shop has books about it."
)
LETTER = (
    "Dear Ms Lindqvist, thank you for your letter of the third of May. The parcel with the two lamps "
    "left our warehouse on Monday and will reach you on Thursday between nine and twelve. Should one "
    "of the lamps be broken, please send us a photograph, and we will send you a new one at once."
)


@dataclass
class Served:
    """What serving some conversations took.

    Attributes:
        computed: tokens that went through the model.
        seconds: until the last answer; `first`: until each had its first token.
    """

    passes: int = 0
    computed: int = 0
    preemptions: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Of the answers."""
        return sum(map(len, self.answers))


def serve(conversations: list[list[dict[str, str]]], max_tokens: int, **settings: Any) -> Served:
    """Ask all at once."""
    llm = LLM("smollm2", max_model_len=1024, **settings)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    llm.chat([[{"role": "user", "content": "Hello"}]], SamplingParams(max_tokens=2))  # warms up
    served, seen = Served(), set[str]()
    start = time.perf_counter()

    def count(record: StepRecord) -> None:
        step = record.scheduler_output
        served.passes += 1
        served.computed += step.total_num_scheduled_tokens
        served.preemptions += len(step.preempted_req_ids)
        for output in record.outputs:
            if output.new_token_ids and output.request_id not in seen:
                seen.add(output.request_id)
                served.first.append(time.perf_counter() - start)

    llm.llm_engine.engine_core.step_observers.append(count)
    outputs = llm.chat(conversations, params, use_tqdm=False)
    served.seconds = time.perf_counter() - start
    served.answers = [list(output.outputs[0].token_ids) for output in outputs]
    return served


def ask(question: str, system: str | None = None) -> list[dict[str, str]]:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question}]


def row(name: str, served: Served, **more: Any) -> dict[str, Any]:
    return {
        "": name,
        "passes": served.passes,
        "tokens computed": served.computed,
        "seconds": served.seconds,
        "tokens/s": served.tokens / served.seconds,
        "mean TTFT, s": sum(served.first) / len(served.first),
    } | more


def same(one: Served, other: Served) -> str:
    """Whether the answers are the same, and if not, how many differ."""
    differ = sum(a != b for a, b in zip(one.answers, other.answers, strict=True))
    return "yes" if not differ else f"{differ} of {len(one.answers)} differ"


def main() -> None:
    print("requests together, up to 48 tokens each")
    rows = []
    for count in (1, 4, 16):
        served = serve([ask(question) for question in QUESTIONS[:count]], 48)
        rows.append(row(f"{count} request{'s' * (count > 1)}", served))
    print(machine.table(rows))

    print("\n8 questions behind one instruction, 16 tokens each")
    visitors = [ask(question, INSTRUCTION) for question in QUESTIONS[:8]]
    # A step takes one visitor's prompt and the beginning of the next one's, so the first one's blocks are
    # there when the others ask for them.
    plain = serve(visitors, 16, max_num_batched_tokens=512, enable_prefix_caching=False)
    shared = serve(visitors, 16, max_num_batched_tokens=512)
    rows = [
        row("no prefix caching", plain, **{"same answers": ""}),
        row("prefix caching", shared, **{"same answers": same(plain, shared)}),
    ]
    print(machine.table(rows))

    print("\n16 requests, up to 96 tokens each, and the memory for them")
    roomy = serve([ask(question) for question in QUESTIONS], 96, num_gpu_blocks=257)
    tight = serve([ask(question) for question in QUESTIONS], 96, num_gpu_blocks=33)
    rows = [
        row("256 blocks", roomy, preemptions=roomy.preemptions, **{"same answers": ""}),
        row(
            "32 blocks",
            tight,
            preemptions=tight.preemptions,
            **{"same answers": same(roomy, tight)},
        ),
    ]
    print(machine.table(rows))

    print("\na letter to be copied, and a question; drafts by n-gram, up to 4 tokens")
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    rows = []
    for name, question in (
        ("the letter", f"Copy this letter word by word:\n{LETTER}"),
        ("a question", QUESTIONS[3]),
    ):
        plain = serve([ask(question)], 96)
        drafted = serve([ask(question)], 96, speculative_config=ngram)
        rows.append(row(name, plain, **{"same answers": ""}))
        rows.append(row(f"{name}, drafts", drafted, **{"same answers": same(plain, drafted)}))
    print(machine.table(rows))


if __name__ == "__main__":
    main()
