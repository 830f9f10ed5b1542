"""Lab 12-05, given: the two loops that call your functions, synchronous and asynchronous."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.spec_decode.ngram_proposer import find_ngram_plainly
from mini_vllm.structured_output.backend_native import NativeBackend
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.tokenizer.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded.json"
_STEPS = 400

parts = load_module(HERE / "parts.py", "lab_12_05_parts")
Bitmask = NDArray[np.int32]
Drafter = Callable[[int, Sequence[int]], list[int]]


@cache
def recorded() -> dict[str, Any]:
    """What was counted round vLLM's own functions and xgrammar's grammars: see in_vllm.py."""
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


@dataclass
class Answer:
    """What a run gave.

    Attributes:
        tokens: by request.
        counts: what was asked of the grammars.
        num_steps: how often the model has run.
        events: asynchronous runs only, in their order: `execute 3`, `sample 3`, `update 2`.
        plans: asynchronous runs only: of each step its plan, as it was left.
    """

    tokens: list[list[int]]
    counts: dict[str, int]
    num_steps: int
    events: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)


def choose(logits: NDArray[np.float32], row: NDArray[np.int32] | None) -> int:
    """The best token that the row allows: the mask, then greedy sampling."""
    found: int = parts.choose(logits, row)
    return found


def choose_all(
    model: Any, history: Sequence[int], drafts: Sequence[int], rows: Bitmask | None
) -> list[int]:
    """What the model chooses at each place of a request: as if the drafts before it were right."""
    return [
        choose(model.logits([*history, *drafts[:i]]), None if rows is None else rows[i])
        for i in range(len(drafts) + 1)
    ]


def verify(drafts: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """What greedy verification keeps: the drafts that were chosen, and the first token after them."""
    agreed = 0
    while agreed < len(drafts) and drafts[agreed] == chosen[agreed]:
        agreed += 1
    return list(chosen[: agreed + 1])


def cut(tokens: list[int], most: int, end: int) -> list[int]:
    """Nothing behind the end token, and at most so many."""
    length = tokens.index(end) + 1 if end in tokens else len(tokens)
    return tokens[: min(length, most)]


MakeGrammar = Callable[[Any, Any], Any]
"""`make(job, counter)`: a grammar in its first state, None for a free request."""


def make_counting(job: Any, counter: Any) -> Any:
    """`mini_vllm`'s grammar, counting."""
    return parts.CountingGrammar(job.make_grammar(), counter) if job.make_grammar else None


class _Grammars:
    """The grammars of a run, your functions, and what they ask of each other."""

    def __init__(
        self, lab: Any, jobs: Sequence[Any], model: Any, k: int, make: MakeGrammar
    ) -> None:
        self.lab, self.end = lab, model.end
        self.counter = parts.Counter()
        self.by_request = [make(job, self.counter) for job in jobs]
        width = -(-len(model.logits([])) // 32)
        # Used again in every step, so a row that you leave alone has bits of an earlier one.
        self.bitmask: Bitmask = np.zeros((len(jobs) * (1 + k), width), dtype=np.int32)

    def fill(self, number: int, drafts: Sequence[int], row: int) -> int:
        """By `fill_rows`; returns the row after the last."""
        grammar, lab = self.by_request[number], self.lab
        end = self.counter.during("fill", lab.fill_rows, grammar, drafts, self.bitmask, row)
        parts.refuse_unless(
            end == row + len(drafts) + 1,
            f"{len(drafts)} drafts, rows from {row} on: fill_rows returned {end}, and the row after them "
            f"is {row + len(drafts) + 1}",
        )
        return row + len(drafts) + 1

    def accept(self, number: int, drafts: Sequence[int], chosen: list[int], most: int) -> list[int]:
        """By `accept`, where the request is bound."""
        sampled = verify(drafts, chosen)
        grammar = self.by_request[number]
        if grammar is None:
            return cut(sampled, most, self.end)
        lab = self.lab
        new = self.counter.during("accept", lab.accept, grammar, drafts, chosen, self.end, most)
        kept = list(new or ())
        parts.refuse_unless(
            kept != [] and kept == sampled[: len(kept)],
            f"drafts {list(drafts)}, chosen {chosen}: verification keeps {sampled}, and accept returned "
            f"{new!r}",
        )
        return kept


# ---- synchronous: v1/engine/core.py:428 EngineCore.step --------------------------------------------


def run_sync(
    lab: Any,
    jobs: Sequence[Any],
    model: Any,
    drafter: Drafter,
    k: int,
    make: MakeGrammar = make_counting,
) -> Answer:
    """All requests in one batch, to their ends, by `fill_rows`, `accept` and `filter_drafts`."""
    grammars = _Grammars(lab, jobs, model, k, make)
    tokens: list[list[int]] = [[] for _ in jobs]
    drafts: list[list[int]] = [[] for _ in jobs]
    live = list(range(len(jobs)))
    for step in range(_STEPS):
        if not live:
            return Answer(tokens, grammars.counter.counts.flat(), step)
        first, row = {}, 0
        for i in live:
            if grammars.by_request[i] is not None:
                first[i] = row
                row = grammars.fill(i, drafts[i], row)
        for i in list(live):
            rows = grammars.bitmask[first[i] :] if i in first else None
            chosen = choose_all(model, jobs[i].prompt + tokens[i], drafts[i], rows)
            most = jobs[i].max_tokens - len(tokens[i])
            tokens[i] += grammars.accept(i, drafts[i], chosen, most)
            if model.end in tokens[i] or len(tokens[i]) >= jobs[i].max_tokens:
                live.remove(i)
                continue
            drafts[i] = drafter(i, jobs[i].prompt + tokens[i])
            if (grammar := grammars.by_request[i]) is not None:
                drafts[i] = grammars.counter.during("filter", lab.filter_drafts, grammar, drafts[i])
    raise parts.RefusedError(f"the run has not ended after {_STEPS} steps")


# ---- asynchronous: v1/engine/core.py:469 EngineCore.step_with_batch_queue --------------------------


@dataclass
class Scheduled:
    """A request of a step, as it was when the step was planned.

    Attributes:
        request_id: its number, as text.
        bound: it has a rule.
        is_prefill_chunk: the step does not reach the end of its prompt, so it samples nothing.
        num_output_placeholders: places of earlier steps whose tokens the scheduler does not know yet.
    """

    request_id: str
    bound: bool
    is_prefill_chunk: bool
    num_output_placeholders: int


@dataclass
class Plan:
    """What a step runs.

    Attributes:
        number: from 0 on.
        requests: in their order.
        drafts: for each request that has places for drafts, what is known of them.
    """

    number: int
    requests: list[Scheduled]
    drafts: dict[str, list[int]]


@dataclass
class _Output:
    """What the worker sampled in a step: for each request its drafts, and what it chose at each place."""

    plan: Plan
    drafts: dict[str, list[int]] = field(default_factory=dict)
    chosen: dict[str, list[int]] = field(default_factory=dict)


class AsyncCore:
    """A scheduler and a worker, which know different things.

    The worker has sampled the tokens of a step, and drafted the next ones, before the scheduler knows.
    """

    def __init__(
        self,
        lab: Any,
        jobs: Sequence[Any],
        model: Any,
        drafter: Drafter,
        k: int,
        make: MakeGrammar = make_counting,
    ) -> None:
        self.jobs, self.model, self.drafter, self.k = jobs, model, drafter, k
        self.grammars = _Grammars(lab, jobs, model, k, make)
        # the scheduler's
        self.tokens: list[list[int]] = [[] for _ in jobs]
        self.chunks_left = [job.chunks for job in jobs]
        self.placeholders = [0] * len(jobs)
        self.steps_in_flight = [0] * len(jobs)
        self.in_flight: list[_Output] = []
        self.num_steps = 0
        self.events: list[str] = []
        self.plans: list[Plan] = []
        # the worker's
        self.history = [list(job.prompt) for job in jobs]
        self.drafted: dict[str, list[int]] = {}
        self.executed: tuple[Plan, dict[str, list[int]]] | None = None

    def is_finished(self, number: int) -> bool:
        tokens = self.tokens[number]
        return self.model.end in tokens or len(tokens) >= self.jobs[number].max_tokens

    @property
    def done(self) -> bool:
        return not self.in_flight and all(map(self.is_finished, range(len(self.jobs))))

    def is_due(self, number: int) -> bool:
        """Whether a request wants another step: every one in flight brings it a token at least."""
        wanted = self.jobs[number].max_tokens - len(self.tokens[number])
        return not self.is_finished(number) and self.steps_in_flight[number] < wanted

    def grammar(self, request_id: str) -> Any:
        """A request's grammar; None if it is free."""
        return self.grammars.by_request[int(request_id)]

    def schedule(self) -> Plan | None:
        """Plan the next step; None if there is nothing to run."""
        requests: list[Scheduled] = []
        drafts: dict[str, list[int]] = {}
        for i in filter(self.is_due, range(len(self.jobs))):
            request_id = str(i)
            self.chunks_left[i] -= self.chunks_left[i] > 0
            chunk = self.chunks_left[i] > 0
            bound = self.grammars.by_request[i] is not None
            requests.append(Scheduled(request_id, bound, chunk, self.placeholders[i]))
            if chunk:
                continue
            # Now and then a step has tokens for fewer drafts than the worker has.
            places = 0
            if self.steps_in_flight[i]:
                places = self.k - ((self.num_steps + i) % 4 == 0)
                drafts[request_id] = [-1] * places
            self.placeholders[i] += 1 + places
            self.steps_in_flight[i] += 1
        if not requests:
            return None
        plan = Plan(self.num_steps, requests, drafts)
        self.plans.append(plan)
        self.num_steps += 1
        return plan

    def execute_model(self, plan: Plan) -> None:
        """Start the model, on the worker's own drafts."""
        parts.refuse_unless(
            self.executed is None,
            f"execute_model({plan.number}), and the step before it has not been sampled",
        )
        self.events.append(f"execute {plan.number}")
        own = {i: self.drafted[i][: len(places)] for i, places in plan.drafts.items()}
        self.executed = plan, own

    def get_grammar_bitmask(self, plan: Plan) -> dict[str, Bitmask]:
        """The rows of the plan's bound requests that have not finished, by `fill_rows`."""
        first, row = {}, 0
        for request in plan.requests:
            number = int(request.request_id)
            if request.bound and not request.is_prefill_chunk and not self.is_finished(number):
                first[request.request_id] = row
                row = self.grammars.fill(number, plan.drafts.get(request.request_id, []), row)
        rows = self.grammars.bitmask.copy()
        return {request_id: rows[start:] for request_id, start in first.items()}

    def sample_tokens(self, plan: Plan, rows: dict[str, Bitmask]) -> None:
        """Let the worker choose and verify the tokens of a step that it has executed, and draft."""
        executed, self.executed = self.executed, None
        if executed is None or executed[0] is not plan:
            raise parts.RefusedError(
                f"sample_tokens({plan.number}) before execute_model({plan.number}), or a second time"
            )
        self.events.append(f"sample {plan.number}")
        own = executed[1]
        output = _Output(plan)
        for request in plan.requests:
            if request.is_prefill_chunk:
                continue
            request_id, number = request.request_id, int(request.request_id)
            drafts, history = own.get(request_id, []), self.history[number]
            chosen = choose_all(self.model, history, drafts, rows.get(request_id))
            output.drafts[request_id], output.chosen[request_id] = drafts, chosen
            history += verify(drafts, chosen)
            self.drafted[request_id] = self.drafter(number, history)
        self.in_flight.append(output)

    def update_from_output(self, plan: Plan | None) -> None:
        """Wait for the tokens of the step before `plan`, if one is in flight, and take them in: the requests
        get them, and their grammars move on, by `accept`. With None it is the latest step."""
        if not self.in_flight or self.in_flight[0].plan is plan:
            return
        output = self.in_flight.pop(0)
        self.events.append(f"update {output.plan.number}")
        for request_id, chosen in output.chosen.items():
            number = int(request_id)
            drafts = output.drafts[request_id]
            self.placeholders[number] -= 1 + len(drafts)
            self.steps_in_flight[number] -= 1
            if not self.is_finished(number):  # else it has finished since the step was planned
                most = self.jobs[number].max_tokens - len(self.tokens[number])
                self.tokens[number] += self.grammars.accept(number, drafts, chosen, most)

    def take_draft_token_ids(self, plan: Plan) -> dict[str, list[int]]:
        """The worker's drafts for the requests that have places in the plan and have not finished."""
        parts.refuse_unless(
            not self.in_flight,
            f"take_draft_token_ids({plan.number}), and the tokens of the step before it have not been taken "
            "in: drafts are filtered from the state after those. A step that is not deferred takes no drafts",
        )
        return {
            request_id: list(self.drafted[request_id])
            for request_id in plan.drafts
            if not self.is_finished(int(request_id))
        }


def run_async(
    lab: Any,
    jobs: Sequence[Any],
    model: Any,
    drafter: Drafter,
    k: int,
    make: MakeGrammar = make_counting,
) -> Answer:
    """All requests, to their ends, by `async_step`."""
    core = AsyncCore(lab, jobs, model, drafter, k, make)
    for _ in range(_STEPS):
        if core.done:
            counts = core.grammars.counter.counts.flat()
            del counts["filter: calls"]  # `async_step` makes them itself
            return Answer(core.tokens, counts, core.num_steps, core.events, core.plans)
        lab.async_step(core)
    raise parts.RefusedError(f"the run has not ended after {_STEPS} turns")


# ---- what the tests run ----------------------------------------------------------------------------

NUM_BATCHES = 250
"""Of random requests, four of five with a grammar: 1,000 grammars."""


def run(
    mode: str, lab: Any, seed: int, jobs: Sequence[Any], make: MakeGrammar = make_counting
) -> Answer:
    """A batch of `parts.batches`, `sync` or `async`, with one to four drafts a step."""
    k = 1 + seed % 4
    drafter = parts.wrong_drafter(jobs, k, seed, mode == "async")
    loop = run_sync if mode == "sync" else run_async
    return loop(lab, jobs, parts.TableModel(), drafter, k, make)


def add(total: dict[str, int], counts: dict[str, int]) -> None:
    """Add a run's counts to a total."""
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count


@cache
def random_batches() -> list[tuple[int, list[Any]]]:
    """The 1,000 grammars."""
    return list(parts.batches(NUM_BATCHES))


def replay(lab: Any, recorded_run: dict[str, Any]) -> Answer:
    """A run of real vLLM once more by your functions: its drafts, its model's choices. No model runs."""
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    end = tokenizer.eos_token_id
    assert end is not None, "the shipped tokenizer has no end token"
    backend = NativeBackend(tokenizer, len(tokenizer))
    jobs = []
    for line in recorded_run["requests"]:
        job = parts.Job(line["prompt"], None, recorded_run["max_tokens"], answer=line["answer"])
        if line["rule"] is not None:
            kind, spec = line["rule"]
            job.rule = StructuredOutputOptions[kind], spec
            job.make_grammar = partial(backend.compile_grammar, *job.rule)
        jobs.append(job)
    k, min_n, max_n = (recorded_run[name] for name in ("k", "min_n", "max_n"))

    def draft(number: int, tokens: Sequence[int]) -> list[int]:
        start = find_ngram_plainly(tokens, min_n, max_n)
        return [] if start is None else list(tokens[start : start + k])

    model = parts.ReplayModel([job.prompt + job.answer for job in jobs], len(tokenizer), end)
    return run_sync(lab, jobs, model, draft, k)
