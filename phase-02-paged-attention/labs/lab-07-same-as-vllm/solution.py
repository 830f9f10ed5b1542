"""Lab 02-07: an allocator under vLLM's recorded decisions. The reference solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from course.parity.report import ids
from course.parity.rules import RULES as COURSE_RULES
from course.parity.traces import Arrival, Config, Trace
from course.parity.turns import Turn, Turns
from mini_vllm.core import block_pool, kv_cache_manager
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request import Request
from mini_vllm.sampling_params import SamplingParams

MyBlockPool = block_pool.BlockPool
MyKVCacheManager = kv_cache_manager.KVCacheManager

MakeManager = Callable[[Config], KVCacheManager]

RULES = {key: COURSE_RULES[key] for key in ("null", "length", "hit", "grow", "first", "free")} | {
    "gate": COURSE_RULES["gate"],
    "order": COURSE_RULES["blocks order"],
    "room": "Room: a running request gets its blocks if so many are free, and is refused if not. Then "
    "somebody is preempted, and it asks again.",
    "own": "Own blocks: what a request computes itself goes into blocks that nobody else holds, even "
    "where another request has filled a block with the same tokens. Only hits are shared.",
    "raised": "The manager raised instead of answering.",
}


class Difference(NamedTuple):
    """Where a replay first leaves its trace.

    Attributes:
        step: counted from 0.
        request_id: whose blocks differ; "" for the rule "free".
        theirs, ours: its block table in vLLM and here, right after the step is scheduled. None: it asked
            and was refused, or (theirs) was preempted later in the step. For the rule "free": a list of one
            number, the free blocks.
        rule: a key of RULES.
        note: what was raised, for the rule "raised".
    """

    step: int
    request_id: str
    theirs: Sequence[int] | None
    ours: Sequence[int] | None
    rule: str
    note: str = ""


def make_manager(config: Config) -> KVCacheManager:
    """The manager under test, for a trace's config."""
    num_blocks, caching = config["num_blocks"], config["enable_prefix_caching"]
    pool = MyBlockPool(num_blocks, caching)
    made: KVCacheManager = MyKVCacheManager(
        num_blocks, config["block_size"], config["max_model_len"], caching, pool
    )
    return made


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(a // -b)


def first_unlike(a: Sequence[int], b: Sequence[int]) -> int:
    """The first place in which two lists differ; where one is the other's beginning, its end."""
    shorter = min(len(a), len(b))
    return next((k for k in range(shorter) if a[k] != b[k]), shorter)


class Replay:
    """One trace on one manager: vLLM's decisions, your calls.

    Attributes:
        manager: under test. You need `get_computed_blocks`, `allocate_slots`, `free`, `get_block_ids` (a list
            for each KV cache group, here one), and `block_pool.get_num_free_blocks`.
        requests: those still here, by id. `num_computed_tokens` is yours to keep; appending a token hashes
            the block that it fills.
        number: the step that comes next.
        gave: the manager's last answer, which `ask` notes for `step`.
    """

    def __init__(self, trace: Trace, manager: KVCacheManager) -> None:
        self.config = trace["config"]
        self.manager = manager
        self.requests: dict[str, Request] = {}
        self.number = 0
        self.gave = False

    def arrive(self, index: int, arrival: Arrival) -> None:
        """Enter a request. It holds nothing yet. The trace says when it ends."""
        caching = self.config["enable_prefix_caching"]
        self.requests[arrival["id"]] = Request(
            arrival["id"],
            list(arrival["prompt"]),
            SamplingParams(max_tokens=arrival["max_tokens"]),
            arrival_time=float(index),
            priority=arrival["priority"],
            block_size=self.config["block_size"] if caching else None,
        )

    # -- your work: the calls

    def leave(self, request_id: str) -> None:
        """A request has finished or was aborted: it gives back what it holds, and is forgotten."""
        self.manager.free(self.requests.pop(request_id))

    def preempt(self, request_id: str) -> None:
        """It gives back all its blocks and will have to compute everything anew, its outputs too. It lives
        on with its tokens."""
        request = self.requests[request_id]
        self.manager.free(request)
        request.num_computed_tokens = 0

    def ask(self, turn: Turn) -> bool:
        """Ask the manager for slots for the tokens of this turn; whether it gave them, noted in `gave`, too.

        - A request that runs asks for `turn.num_tokens` more.
        - One that is to be admitted looks up what is cached first. Its tokens begin behind the hits, and it
          is admitted only if the whole of what it has now fits, even if this turn computes a part. (`config`
          may say `scheduler_reserve_full_isl: false`; then only this turn's tokens must fit. It is true
          where it is not said.) Once it is let in, its hits are computed tokens.
        """
        request = self.requests[turn.request_id]
        if not turn.admitted:
            self.gave = self.manager.allocate_slots(request, turn.num_tokens) is not None
            return self.gave
        hits, num_hit_tokens = self.manager.get_computed_blocks(request)
        blocks = self.manager.allocate_slots(
            request,
            turn.num_tokens,
            num_new_computed_tokens=num_hit_tokens,
            new_computed_blocks=hits,
            full_sequence_must_fit=self.config.get("scheduler_reserve_full_isl", True),
        )
        self.gave = blocks is not None
        if self.gave:
            request.num_computed_tokens = num_hit_tokens
        return self.gave

    def serve(self, turn: Turn) -> bool:
        """One turn; whether the manager answered every time as vLLM's did.

        In vLLM each of `turn.victims` was preempted because the request had asked and was refused. The
        request asked again after each of them, unless the last victim was itself. A manager that has room
        where vLLM had none is as wrong as one that has none: ask each time, and see.
        """
        for victim in turn.victims:
            if self.ask(turn):
                return False
            self.preempt(victim)
        if turn.request_id in turn.victims:
            return True
        return self.ask(turn) == turn.fits

    def compute(self, scheduled: dict[str, int]) -> None:
        """The step is scheduled: the counters of all its requests move now, before anything is sampled."""
        for request_id, num_tokens in scheduled.items():
            self.requests[request_id].num_computed_tokens += num_tokens

    def take_in(self, sampled: dict[str, int], finished: Sequence[str]) -> None:
        """The tokens have arrived: append them, then let the finished requests leave."""
        for request_id, token in sampled.items():
            self.requests[request_id].append_output_token_ids(token)
        for request_id in finished:
            self.leave(request_id)

    # -- given: a step

    def step(self, turns: Turns) -> Difference | None:
        """One step of the trace (given): the calls in vLLM's order, and the first difference in it.

        Arrivals and aborts come before the step is scheduled. Then the turns, one by one. When
        they are over, and nothing is sampled yet, the tables of `turns.decision["blocks"]` are compared, in
        the order that they have there. Then counters, tokens, ends. Last, the free blocks.

        A turn that is answered otherwise than in vLLM is a difference, with None for the one that said no:
        ours if your manager refused, theirs if it gave where vLLM refused, even if vLLM gave as well once it
        had preempted somebody. An exception (`Exception`, whatever it is) out of a turn is one, too: rule
        "raised", ours None, `str` of it as note.
        """
        for index, arrival in turns.arrived:
            self.arrive(index, arrival)
        for request_id in turns.aborted:
            self.leave(request_id)
        number, self.number = self.number, self.number + 1
        decision, tables = turns.decision, self._tables()
        for turn in turns.turns:
            theirs = decision["blocks"].get(turn.request_id)
            try:
                agrees = self.serve(turn)
            except NotImplementedError:  # of yours, still to be written: no answer of the manager's
                raise
            except Exception as error:
                return Difference(number, turn.request_id, theirs, None, "raised", str(error))
            if not agrees:
                if not self.gave:
                    return self._difference(number, turn, tables, theirs, None)
                ours = self.manager.get_block_ids(turn.request_id)[0]
                return self._difference(number, turn, tables, None, ours)
        last = {turn.request_id: turn for turn in turns.turns}
        for request_id, theirs in decision["blocks"].items():
            ours = self.manager.get_block_ids(request_id)[0]
            if ours != theirs:
                return self._difference(number, last[request_id], tables, theirs, ours)
        self.compute(decision["scheduled"])
        self.take_in(turns.sampled, list(decision["finished"]))
        free = self.manager.block_pool.get_num_free_blocks()
        if free != decision["free"]:
            return Difference(number, "", [decision["free"]], [free], "free")
        return None

    def _tables(self) -> dict[str, list[int]]:
        return {i: self.manager.get_block_ids(i)[0] for i in self.requests}

    def _difference(
        self,
        number: int,
        turn: Turn,
        before: dict[str, list[int]],
        theirs: Sequence[int] | None,
        ours: Sequence[int] | None,
    ) -> Difference:
        request_id = turn.request_id
        others = {b for i, table in self._tables().items() if i != request_id for b in table}
        held = () if turn.admitted else before[request_id]
        rule = rule_of(turn, held, theirs, ours, others, self.config["block_size"])
        return Difference(number, request_id, theirs, ours, rule)


def rule_of(
    turn: Turn,
    before: Sequence[int],
    theirs: Sequence[int] | None,
    ours: Sequence[int] | None,
    others: set[int],
    block_size: int,
) -> str:
    """Which rule settles how two block tables differ: a key of RULES, the first line that applies.

    | what is seen | rule |
    | --- | --- |
    | one of the two tables is None, and the request was to be admitted | gate |
    | one of the two tables is None, and the request was running | room |
    | block 0 is in ours | null |
    | the tables have different lengths, and the request is admitted in this step | hit |
    | the tables have different lengths | length |
    | the first entry that differs was there before the step | grow |
    | it is one of vLLM's hits (see below) | first |
    | ours is a block that another request holds here | own |
    | none of these: another block was next in the free queue | order |

    The table of a request that is admitted begins with its hits; what follows holds the tokens of its turn.

    Args:
        turn: the request's turn in this step.
        before: its table before the step, empty where it is admitted.
        theirs, ours: as in `Difference`; unlike each other.
        others: the blocks that other requests hold here.
        block_size: tokens per block.
    """
    admitted = turn.admitted
    if theirs is None or ours is None:
        return "gate" if admitted else "room"
    if 0 in ours:
        return "null"
    if len(theirs) != len(ours):
        return "hit" if admitted else "length"
    at = first_unlike(theirs, ours)
    if at < len(before):
        return "grow"
    if admitted and at < len(theirs) - cdiv(turn.num_tokens, block_size):
        return "first"
    return "own" if ours[at] in others else "order"


def first_difference(trace: Trace, steps: Sequence[Turns], make: MakeManager) -> Difference | None:
    """Replay the steps on a new manager, up to the first difference; None if there is none. Given."""
    replay = Replay(trace, make(trace["config"]))
    for turns in steps:
        if (difference := replay.step(turns)) is not None:
            return difference
    return None


def report(trace: Trace, difference: Difference) -> str:
    """What to print for a difference (given), in lines:

        seed 7, step 12, request r3
        vLLM   4 9 2 11
        here   4 9 11
        Hit length: a request that …

    The tables as `ids` of `course.parity.report` writes them: `ids(table, at)`, `at` being the place of the
    first entry that differs (where one is shorter, the place after its end); without `at` where one of the
    two is None, for which `no blocks` stands. Then the rule's words from RULES, and the note where there is
    one. For the rule "free" there is no request, so the first line ends after the step.
    """
    theirs, ours = difference.theirs, difference.ours
    at = None if theirs is None or ours is None else first_unlike(theirs, ours)
    whose = f", request {difference.request_id}" if difference.request_id else ""
    lines = [f"seed {trace['seed']}, step {difference.step}{whose}"]
    for who, table in (("vLLM", theirs), ("here", ours)):
        lines.append(f"{who}   {'no blocks' if table is None else ids(list(table), at)}")
    lines.append(RULES[difference.rule])
    return "\n".join(lines + [difference.note] * bool(difference.note))
