"""Lab 02-08: the engines that a test of the incident has to tell apart, good and bad.

All of them are `mini_vllm`'s scheduler, or vLLM's, behind one small interface, without a model: sampling
needs none here, because every request ignores EOS.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course.parity.decisions import mini_parts
from course.parity.traces import Config, Parts
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.scheduler import Scheduler

HERE = Path(__file__).resolve().parent
MOST_STEPS = 3000


def trace() -> list[dict[str, Any]]:
    text = (HERE / "incident" / "trace.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


class PinScheduler(Scheduler):
    """`mini_vllm`'s, but that it accepts what vLLM 0.22.1 accepts: whatever comes."""

    def add_request(self, request: Request) -> None:
        self.waiting.add_request(request)
        self.requests[request.request_id] = request


class Overtaking(PinScheduler):
    """Whoever does not fit is passed over, for as long as that may be."""

    def _schedule_waiting(self, step: Any) -> None:
        for _ in range(len(self.waiting)):
            super()._schedule_waiting(step)
            if not len(self.waiting):
                return
            self.waiting.add_request(self.waiting.pop_request())


def config(num_gpu_blocks: int, block_size: int, max_model_len: int) -> Config:
    return {
        "block_size": block_size,
        "num_blocks": num_gpu_blocks,
        "max_num_seqs": 4,
        "max_num_batched_tokens": max(64, max_model_len),
        "long_prefill_token_threshold": 0,
        "enable_prefix_caching": True,
        "max_model_len": max_model_len,
        "policy": "fcfs",
    }


class Engine:
    """The pin's rules: it starts if all blocks together hold max_model_len tokens, and accepts any prompt
    below that. Subclasses mend it, well or badly."""

    scheduler_class: Any = PinScheduler

    def __init__(self, num_gpu_blocks: int, block_size: int, max_model_len: int) -> None:
        if max_model_len > num_gpu_blocks * block_size:
            raise ValueError(f"{num_gpu_blocks} blocks of {block_size} for {max_model_len} tokens")
        self.num_gpu_blocks, self.block_size = num_gpu_blocks, block_size
        self.max_model_len = max_model_len
        self.outputs: dict[str, int] = {}
        self.finished: dict[str, str] = {}
        self._requests: dict[str, Any] = {}
        self._steps = 0
        self.parts = self.make_parts()

    def make_parts(self) -> Parts:
        made = config(self.num_gpu_blocks, self.block_size, self.max_model_len)
        return mini_parts(made, self.scheduler_class)

    # -- what mends may change

    def check(self, prompt_tokens: int, max_tokens: int) -> None:
        """ValueError for a request that is to be refused."""

    def longest(self, prompt_tokens: int, max_tokens: int) -> int:
        """The slots that the request can come to need."""
        return min(prompt_tokens + max_tokens, self.max_model_len) - 1

    @property
    def room(self) -> int:
        return (self.num_gpu_blocks - 1) * self.block_size

    # -- what tests call

    def add_request(self, request_id: str, prompt_tokens: int, max_tokens: int) -> None:
        if not 0 < prompt_tokens < self.max_model_len or max_tokens < 1:
            raise ValueError(f"{prompt_tokens} prompt tokens, max_model_len {self.max_model_len}")
        self.check(prompt_tokens, max_tokens)
        index = len(self._requests)
        arrival: Any = {
            "id": request_id,
            "step": 0,
            "prompt": [3 + index] * prompt_tokens,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "priority": 0,
            "abort": None,
        }
        self._requests[request_id] = request = self.parts.make_request(arrival, index)
        self.outputs[request_id] = 0
        self.parts.scheduler.add_request(request)

    def step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise RuntimeError(
                f"your test has asked for step {self._steps} of one engine. It waits for a request that "
                "will never end, as the operators did: bound the number of steps"
            )
        scheduler = self.parts.scheduler
        if not scheduler.has_unfinished_requests():
            return
        out = scheduler.schedule()
        ids = list(out.num_scheduled_tokens)
        live = [self._requests[i] for i in ids]
        sampled = [[9] if r.num_computed_tokens >= r.num_tokens else [] for r in live]
        scheduler.update_from_output(out, self.parts.make_output(ids, sampled))
        for request_id, request in self._requests.items():
            self.outputs[request_id] = len(request.output_token_ids)
            if request.is_finished() and request_id not in self.finished:
                self.finished[request_id] = "length"

    def drop(self, request_id: str) -> None:
        self.parts.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)


# -- good ------------------------------------------------------------------------------------------


class RefusesAtTheDoor(Engine):
    """`mini_vllm`'s own answer: a request that may outgrow the pool is refused when it comes."""

    def check(self, prompt_tokens: int, max_tokens: int) -> None:
        if self.longest(prompt_tokens, max_tokens) > self.room:
            raise ValueError("it may need more blocks than there are")


class RefusesToStart(Engine):
    """A pool that is short of max_model_len, with block 0 taken off, does not start."""

    def __init__(self, num_gpu_blocks: int, block_size: int, max_model_len: int) -> None:
        if -(max_model_len // -block_size) > num_gpu_blocks - 1:
            raise ValueError(f"{num_gpu_blocks} blocks are too few for {max_model_len} tokens")
        super().__init__(num_gpu_blocks, block_size, max_model_len)


class FitsTheLength(Engine):
    """max_model_len is lowered until everything that is accepted has room."""

    def __init__(self, num_gpu_blocks: int, block_size: int, max_model_len: int) -> None:
        room = (num_gpu_blocks - 1) * block_size
        super().__init__(num_gpu_blocks, block_size, min(max_model_len, room + 1))


class FitsWholeBlocks(Engine):
    """max_model_len is lowered to what the usable blocks hold, a token less than what could run."""

    def __init__(self, num_gpu_blocks: int, block_size: int, max_model_len: int) -> None:
        room = (num_gpu_blocks - 1) * block_size
        super().__init__(num_gpu_blocks, block_size, min(max_model_len, room))


class AllocatesOneMore(Engine):
    """The pool gets a block on top of those that were promised."""

    def make_parts(self) -> Parts:
        made = config(self.num_gpu_blocks + 1, self.block_size, self.max_model_len)
        return mini_parts(made, self.scheduler_class)


class EndsItWithAnError(Engine):
    """The request is accepted, and told that it cannot be served as soon as that shows."""

    def step(self) -> None:
        for request_id, request in self._requests.items():
            if request_id not in self.finished and request.num_tokens > self.room:
                self.drop(request_id)
                self.finished[request_id] = "error"
                return
        super().step()


# -- bad -------------------------------------------------------------------------------------------


class ChecksThePromptOnly(Engine):
    """A prompt that does not fit is refused; one that grows too long is not."""

    def check(self, prompt_tokens: int, max_tokens: int) -> None:
        if prompt_tokens > self.room:
            raise ValueError("the prompt does not fit")


class ChecksAllBlocks(Engine):
    """The door counts every block of the pool, block 0 among them."""

    def check(self, prompt_tokens: int, max_tokens: int) -> None:
        if self.longest(prompt_tokens, max_tokens) > self.num_gpu_blocks * self.block_size:
            raise ValueError("it may need more blocks than there are")


class RefusesTheLastBlock(Engine):
    """What needs all usable blocks is refused, though it could run."""

    def check(self, prompt_tokens: int, max_tokens: int) -> None:
        if self.longest(prompt_tokens, max_tokens) > self.room - self.block_size:
            raise ValueError("it may need more blocks than there are")


class RefusesTheLastToken(Engine):
    """The last token sampled is given a slot that it never needs."""

    def longest(self, prompt_tokens: int, max_tokens: int) -> int:
        return min(prompt_tokens + max_tokens, self.max_model_len)

    check = RefusesAtTheDoor.check


class ForgetsMaxModelLen(Engine):
    """Goes by max_tokens alone, so it refuses requests that max_model_len stops in time."""

    def longest(self, prompt_tokens: int, max_tokens: int) -> int:
        return prompt_tokens + max_tokens - 1

    check = RefusesAtTheDoor.check


class LetsOthersOvertake(Engine):
    """Who does not fit is overtaken, so nobody waits behind it, and it waits for ever all the same."""

    scheduler_class = Overtaking


class ForgetsIt(Engine):
    """What cannot run is dropped, and nobody is told."""

    def step(self) -> None:
        for request_id, request in self._requests.items():
            if request.num_tokens > self.room and not request.is_finished():
                self.drop(request_id)
        super().step()
        for request_id, request in self._requests.items():
            if request.status is RequestStatus.FINISHED_ABORTED:
                self.finished.pop(request_id, None)


class CutsItShort(Engine):
    """The answer ends where the pool does, and says that all of it is there."""

    def step(self) -> None:
        for request_id, request in self._requests.items():
            if request.num_tokens > self.room and not request.is_finished():
                self.drop(request_id)
                self.finished[request_id] = "length"
        super().step()


class StartsNothing(Engine):
    """The start asks for two blocks to spare."""

    def __init__(self, num_gpu_blocks: int, block_size: int, max_model_len: int) -> None:
        if -(max_model_len // -block_size) > num_gpu_blocks - 2:
            raise ValueError(f"{num_gpu_blocks} blocks are too few for {max_model_len} tokens")
        super().__init__(num_gpu_blocks, block_size, max_model_len)


class ShrinksTooFar(Engine):
    """max_model_len is lowered by a block too many."""

    def __init__(self, num_gpu_blocks: int, block_size: int, max_model_len: int) -> None:
        room = (num_gpu_blocks - 2) * block_size
        super().__init__(num_gpu_blocks, block_size, min(max_model_len, room))


class StopsAfterTheError(EndsItWithAnError):
    """A request that cannot run is told so, and whoever stood behind it is not served any more."""

    def step(self) -> None:
        if "error" not in self.finished.values():
            super().step()


class EndsItTooSoon(EndsItWithAnError):
    """A request is told that it cannot be served as soon as it fills the pool, though it may end there."""

    @property
    def room(self) -> int:
        return super().room - 1


class EndsWhoeverWaits(Engine):
    """Who is not let in at once is told that it cannot be served, also where the pool is merely full."""

    def step(self) -> None:
        super().step()
        for request_id, request in self._requests.items():
            if request_id not in self.finished and not request.num_computed_tokens:
                self.drop(request_id)
                self.finished[request_id] = "error"


GOOD: tuple[Callable[..., Engine], ...] = (
    RefusesAtTheDoor,
    RefusesToStart,
    FitsTheLength,
    FitsWholeBlocks,
    AllocatesOneMore,
    EndsItWithAnError,
)
BAD: tuple[Callable[..., Engine], ...] = (
    ChecksThePromptOnly,
    ChecksAllBlocks,
    RefusesTheLastBlock,
    RefusesTheLastToken,
    ForgetsMaxModelLen,
    LetsOthersOvertake,
    ForgetsIt,
    CutsItShort,
    StartsNothing,
    ShrinksTooFar,
    StopsAfterTheError,
    EndsItTooSoon,
    EndsWhoeverWaits,
)
