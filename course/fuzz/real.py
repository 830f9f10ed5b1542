"""A world on the whole of real vLLM: its CPU build, the course's checkpoint, greedy tokens.

    python -m course.fuzz.real

A world of the fuzz is about slots; here it is about text. Each situation is a world at block size 16,
the least that the CPU's attention takes, with prompts that the shipped model can go on from. One batch at
a time (`async_scheduling=False`). See `tests/authors/test_fuzz_real.py` for what comes out.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course.fuzz.world import Job, Settings, World, world_of

LOW = "The KV cache stores the keys and values of all tokens read so far. With it, a decode step has to "
HIGH = "A block table maps the positions of a request to the blocks that hold them."
TURNS = 300  # enough for any of the situations that ends

WITHDRAWN = Settings(
    block_size=16,
    num_blocks=9,
    max_model_len=128,
    max_num_batched_tokens=128,
    long_prefill_token_threshold=32,
    policy="priority",
)
EQUALS = Settings(
    block_size=16,
    num_blocks=5,
    max_model_len=64,
    max_num_seqs=2,
    max_num_batched_tokens=256,
    long_prefill_token_threshold=16,
    enable_prefix_caching=False,
    scheduler_reserve_full_isl=False,
    policy="priority",
)


@dataclass
class Answer:
    """What came of a situation.

    Attributes:
        texts: of each job, by its number in the world; of siblings, their texts.
        turns: steps of the engine.
        preemptions: how many.
        ended: did all requests end within `TURNS`?
        error: what the engine raised, and that was its end; or nothing.
    """

    texts: list[list[str]]
    turns: int
    preemptions: int
    ended: bool
    error: str


def situations() -> dict[str, tuple[World, int | None]]:
    """By name, a world and a seed: the faults of the pin, and beside each the same requests without."""
    from mini_vllm.config.engine import DEFAULT_MODEL
    from mini_vllm.tokenizer import Tokenizer

    encode = Tokenizer.from_folder(DEFAULT_MODEL).encode
    low = Job(tuple(encode(LOW)[-96:]), max_tokens=24, priority=5, salt=1)
    high = Job(tuple(encode(HIGH)[:32]), max_tokens=16, arrive=1, salt=2)
    bystander = Job(tuple(encode(HIGH)[:8]), max_tokens=6, salt=2)
    twins = Job(tuple(encode(LOW)[-55:]), max_tokens=9, n=2)
    withdrawn = World(WITHDRAWN, (low, high))
    beside = World(replace(WITHDRAWN, num_blocks=10), (low, high, bystander))
    equals = World(EQUALS, (twins,))
    alone = replace(withdrawn.with_settings(num_blocks=40), jobs=(low,))
    whole = alone.with_settings(long_prefill_token_threshold=0)
    return {
        "withdrawn": (withdrawn, None),
        "withdrawn, with room": (withdrawn.with_settings(num_blocks=40), None),
        "beside a bystander": (beside, None),
        "beside a bystander, with room": (beside.with_settings(num_blocks=40), None),
        "equals": (equals, None),
        "equals, with room": (equals.with_settings(num_blocks=40), None),
        "seeded, in chunks": (alone, 7),
        "seeded, in one piece": (whole, 7),
    }


def play(world: World, seed: int | None = None) -> Answer:
    """A world on real vLLM, in this process. Greedy, but for siblings and where there is a seed."""
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    s = world.settings
    llm = vllm.LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        async_scheduling=False,
        distributed_executor_backend=UniProcExecutor,
        block_size=s.block_size,
        num_gpu_blocks_override=s.num_blocks,
        max_model_len=s.max_model_len,
        max_num_seqs=s.max_num_seqs,
        max_num_batched_tokens=s.max_num_batched_tokens,
        long_prefill_token_threshold=s.long_prefill_token_threshold,
        enable_prefix_caching=s.enable_prefix_caching,
        scheduler_reserve_full_isl=s.scheduler_reserve_full_isl,
        scheduling_policy=s.policy,
    )
    engine: Any = llm.llm_engine
    core = engine.engine_core
    scheduler = getattr(core, "engine_core", core).scheduler
    preempt, preempted = scheduler._preempt_request, []

    def noted(request: Any, *args: Any, **kwargs: Any) -> None:
        preempted.append(request.request_id)
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = noted
    texts: dict[int, dict[int, str]] = {}
    turn, error = 0, ""
    last = max(job.arrive for job in world.jobs)
    while turn <= last or (engine.has_unfinished_requests() and turn < TURNS):
        for index, job in enumerate(world.jobs):
            if job.arrive == turn:
                prompt: dict[str, Any] = {"prompt_token_ids": list(job.prompt)}
                if job.salt:
                    prompt["cache_salt"] = str(job.salt)
                params = vllm.SamplingParams(
                    n=job.n,
                    temperature=float(job.n > 1 or seed is not None),
                    seed=seed,
                    max_tokens=job.max_tokens,
                    ignore_eos=True,
                )
                engine.add_request(str(index), prompt, params, priority=job.priority)
        try:
            for output in engine.step():
                said = texts.setdefault(int(output.request_id), {})
                said |= {one.index: one.text for one in output.outputs}
        except RuntimeError as raised:
            error = str(raised)
            break
        turn += 1
    by_job = [list(texts.get(index, {}).values()) for index in range(len(world.jobs))]
    return Answer(by_job, turn, len(preempted), not engine.has_unfinished_requests(), error)


def main(argv: list[str]) -> int:
    """`JOB ANSWER`: the worlds of a JSON file, for tests. Nothing: all situations, printed."""
    if argv:
        job_path, answer_path = map(Path, argv)
        jobs = json.loads(job_path.read_text(encoding="utf-8"))
        answers = [vars(play(world_of(data), seed)) for data, seed in jobs]
        answer_path.write_text(json.dumps(answers), encoding="utf-8")
        return 0
    for name, (world, seed) in situations().items():
        answer = play(world, seed)
        end = f"{answer.turns} turns" if answer.ended else f"not ended after {answer.turns} turns"
        end += f", {answer.error}" if answer.error else ""
        print(f"{name}: {end}, {answer.preemptions} preemptions")
        for index, text in enumerate(answer.texts):
            print(f"    {index}: {text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
