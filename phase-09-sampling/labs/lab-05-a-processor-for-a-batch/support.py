"""Given: the V0 processor, a batch whose rows move as vLLM's do, random schedules, and both engines."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.sample.logits_processor import BatchUpdate, MoveDirectionality
from mini_vllm.sampling_params import SamplingParams

VOCABULARY = 12
Array = npt.NDArray[np.float32]


class SayAfterV0:
    """One request's processor, as V0 had it: made with the request, called once per token."""

    def __init__(self, after: int, say: list[int]) -> None:
        self.after, self.say, self.left = after, say, 0

    def __call__(self, output_ids: list[int], logits: Any) -> Any:
        if self.left > 0:
            self.left -= 1
        elif output_ids and output_ids[-1] == self.after:
            self.left = len(self.say)
        if self.left > 0:
            logits[:] = -float("inf")
            logits[self.say[-self.left]] = 0.0
        return logits


# ---- a batch -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Person:
    """A request. `chunks`: steps of its prompt still to come, after which it has no token."""

    name: str
    params: SamplingParams
    output_ids: list[int] = field(default_factory=list)
    chunks: int = 0
    num_calls: int = 0


def ask(after: int | None = None, say: Sequence[int] = ()) -> SamplingParams:
    """Parameters of a request with this rule, or with none."""
    return SamplingParams(
        extra_args=None if after is None else {"after": after, "say": list(say)}, temperature=0
    )


class Batch:
    """Rows as vLLM keeps them: who comes takes the lowest row that is free, and who is last fills a gap.

    Attributes:
        rows: who is where.
    """

    def __init__(self) -> None:
        self.rows: list[Person | None] = []

    def change(
        self,
        leave: Iterable[str] = (),
        come: Iterable[Person] = (),
        swap: Iterable[tuple[str, str]] = (),
    ) -> BatchUpdate | None:
        """What a processor hears before the next step; None where nothing changes."""
        leave, rows = set(leave), self.rows
        free = [row for row, person in enumerate(rows) if person and person.name in leave]
        for row in free:
            rows[row] = None
        added, moved = [], []
        for person in come:
            row = free.pop(0) if free else len(rows)
            rows[row : row + 1] = [person]
            added.append((row, person.params, [1, 2], person.output_ids))
        while free:
            last = max((row for row, person in enumerate(rows) if person), default=-1)
            if free[0] >= last:
                break
            target = free.pop(0)
            rows[target], rows[last] = rows[last], None
            moved.append((last, target, MoveDirectionality.UNIDIRECTIONAL))
        while rows and rows[-1] is None:
            rows.pop()
        for one, other in swap:
            i, j = self.row_of(one), self.row_of(other)
            rows[i], rows[j] = rows[j], rows[i]
            moved.append((i, j, MoveDirectionality.SWAP))
        if not (free or added or moved):
            return None
        return BatchUpdate(len(rows), free[::-1], added, moved)

    def row_of(self, name: str) -> int:
        return next(row for row, person in enumerate(self.rows) if person and person.name == name)

    def names(self) -> list[str]:
        return [person.name for person in self.rows if person]


def make(lab: Any) -> Any:
    """The processor, for a small vocabulary."""
    return lab.SayAfter(None, "cpu", False)


def forced(processor: Any, num_rows: int) -> list[int | None]:
    """What `apply` makes of as many rows: the token that is forced, or None for a row left alone."""
    logits = np.linspace(-1, 1, num_rows * VOCABULARY, dtype=np.float32).reshape(num_rows, -1)
    return [
        describe(row, before)
        for row, before in zip(processor.apply(logits.copy()), logits, strict=True)
    ]


def describe(row: Array, before: Array) -> Any:
    """The token that a row of logits forces, None if it is as before, else the row."""
    finite = np.flatnonzero(np.isfinite(row))
    if np.array_equal(row, before):
        return None
    if len(finite) == 1 and row[finite[0]] == 0:
        return int(finite[0])
    return row.tolist()


# ---- random schedules ----------------------------------------------------------------------------


@dataclass
class Difference:
    """The first row that is not as the request's own V0 processor makes it."""

    step: int
    row: int
    name: str
    output_ids: list[int]
    history: str
    expected: Any
    got: Any


def play(lab: Any, seed: int, ahead: bool, num_steps: int = 40) -> Difference | None:
    """A random schedule: people come, leave, lose their row and come back, and change places.

    Args:
        ahead: as under asynchronous scheduling a new token stands in the list as -1 until `apply`.
    """
    rng = np.random.RandomState(seed)
    processor, batch = make(lab), Batch()
    away: list[Person] = []
    oracles: dict[str, SayAfterV0 | None] = {}
    histories: dict[str, list[str]] = {}
    shared = ask(3, [4, 3])
    pending: list[tuple[Person, int]] = []
    for step in range(num_steps):
        leave = [name for name in batch.names() if rng.rand() < 0.15]
        gone = [person for person in batch.rows if person and person.name in leave]
        preempted = [person for person in gone if rng.rand() < 0.6]
        come = []
        for person in away[:]:
            if rng.rand() < 0.4:
                away.remove(person)
                person.output_ids, person.chunks = [*person.output_ids], int(rng.randint(0, 3))
                come.append(person)
        for _ in range(rng.randint(0, 3) if len(batch.rows) < 7 else 0):
            name = f"r{len(oracles)}"
            after, say = int(rng.randint(0, 4)), rng.randint(0, 6, size=rng.randint(1, 4)).tolist()
            params = [ask(), shared, ask(after, say)][rng.randint(0, 3)]
            extra = params.extra_args
            oracles[name] = SayAfterV0(extra["after"], extra["say"]) if extra else None
            histories[name] = [f"asks for {extra}" if extra else "asks for nothing"]
            come.append(Person(name, params, chunks=int(rng.randint(0, 3))))
        for person in preempted:
            histories[person.name].append(f"preempted before step {step}")
        before = {person.name: row for row, person in enumerate(batch.rows) if person}
        staying = [name for name in batch.names() if name not in leave] + [p.name for p in come]
        swap = []
        if len(staying) > 1 and rng.rand() < 0.4:
            swap.append(tuple(staying[i] for i in rng.permutation(len(staying))[:2]))
        if not ahead:
            settle(pending)
        update = batch.change(leave, come, swap)
        away += preempted
        for row, person in enumerate(batch.rows):
            assert person, "a row without an owner"
            if before.get(person.name) != row:
                verb = f"row {before[person.name]} to" if person.name in before else "enters"
                histories[person.name].append(f"{verb} row {row} before step {step}")
        processor.update_state(update)
        settle(pending)
        logits = rng.normal(size=(len(batch.rows), VOCABULARY)).astype(np.float32)
        got = np.asarray(processor.apply(logits.copy()))
        for row, person in enumerate(batch.rows):
            assert person, "a row without an owner"
            if person.chunks:
                person.chunks -= 1
                continue
            oracle, expected = oracles[person.name], logits[row].copy()
            if oracle is not None:
                expected = oracle(person.output_ids, expected)
            if not np.array_equal(got[row], expected):
                history = "; ".join(histories[person.name])
                return Difference(
                    step, row, person.name, person.output_ids, history,
                    describe(expected, logits[row]), describe(got[row], logits[row]),
                )  # fmt: skip
            pending.append(
                (person, int(rng.randint(0, 4) if expected.max() != 0 else expected.argmax()))
            )
            person.output_ids.append(-1)
    return None


def settle(pending: list[tuple[Person, int]]) -> None:
    """The tokens of the last step take the places that were kept for them."""
    for person, token in pending:
        person.output_ids[-1] = token
    pending.clear()


# ---- the engines ---------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "block_size": 16,
    "max_model_len": 128,
    "max_num_seqs": 6,
    "enforce_eager": True,
}
SMALL_POOL = 14
"""Blocks, so few that requests are preempted."""


def wrapped_v0(interface: Any) -> Any:
    """The V0 processor in the adapter that both engines have."""

    class Wrapped(interface.AdapterLogitsProcessor):  # type: ignore[misc]
        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: Any) -> Any:
            extra = params.extra_args
            if not extra:
                return None
            v0 = SayAfterV0(extra["after"], extra["say"])
            return lambda output_ids, logits: v0(output_ids, logits)

    return Wrapped


def make_llm(engine: str, processor: Any, num_blocks: int, **more: Any) -> Any:
    """`mini_vllm`'s or vLLM's `LLM` on the shipped model with this processor in it."""
    module: Any = importlib.import_module(engine)
    if engine == "vllm":
        uniproc: Any = importlib.import_module("vllm.v1.executor.uniproc_executor")
        more |= {
            "dtype": "float32",
            "distributed_executor_backend": uniproc.UniProcExecutor,
            "gpu_memory_utilization": 0.3,
        }
    return module.LLM(
        str(DEFAULT_MODEL),
        num_gpu_blocks_override=num_blocks,
        logits_processors=[processor] if processor else None,
        **SETTINGS,
        **more,
    )


def count_preemptions(llm: Any) -> list[str]:
    """A list that gets an entry each time a request is preempted."""
    core = llm.llm_engine.engine_core
    scheduler = getattr(core, "engine_core", core).scheduler
    preempted: list[str] = []
    preempt = scheduler._preempt_request

    def counted(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(request.request_id)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = counted
    return preempted


@dataclass
class Asked:
    """A request to an engine."""

    prompt: list[int]
    max_tokens: int
    extra_args: dict[str, Any] | None


def make_requests(number: int) -> list[Asked]:
    """Prompts of different lengths. Three of four say a phrase after a token that the model would say."""
    asked = []
    for i in range(number):
        prompt = [1, *(20 + (i * 7 + j * (3 + i % 5)) % 200 for j in range(3 + (i * 11) % 40))]
        asked.append(Asked(prompt, 6 + (i * 5) % 21, None))
    plain = answers(make_llm("mini_vllm", None, 64), asked)
    for i, (one, tokens) in enumerate(zip(asked, plain, strict=True)):
        if i % 4:
            after = tokens[(2 + i) % 4]
            say = [10 + i, after, 40 + i, 70 + i, 90 + i, 7 + i][: 2 + i % 5]
            one.extra_args = {"after": after, "say": say}
    return asked


def answers(llm: Any, asked: Sequence[Asked], alone: bool = False) -> list[list[int]]:
    """The tokens of each request at temperature 0, all at once or one by one."""
    make_params: Any = importlib.import_module(type(llm).__module__.split(".")[0]).SamplingParams
    prompts = [{"prompt_token_ids": one.prompt} for one in asked]
    params = [
        make_params(
            temperature=0, max_tokens=one.max_tokens, ignore_eos=True, extra_args=one.extra_args
        )
        for one in asked
    ]
    if alone:
        pairs = zip(prompts, params, strict=True)
        outputs = [llm.generate([p], [how], use_tqdm=False)[0] for p, how in pairs]
    else:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def expected_answers(asked: Sequence[Asked]) -> list[list[int]]:
    """The tokens that each request gets alone, from its own V0 processor, without a preemption."""
    interface = importlib.import_module("mini_vllm.sample.logits_processor")
    return answers(make_llm("mini_vllm", wrapped_v0(interface), 64), asked, alone=True)
