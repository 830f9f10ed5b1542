"""A workload and the settings it runs in, as plain data; and what right answers to it are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

EOS = 2
FIRST_TOKEN = 3
EOS_ONE_IN = 17
MODES = ("sync", "async", "early", "mixed")
"""How batches follow each other.

`sync`: one at a time, with `Scheduler`. The others: `AsyncScheduler` and a queue of two batches;
the device is never done before somebody waits for it (`async`), always (`early`), or now and then
(`mixed`).
"""


@dataclass(frozen=True)
class Job:
    """A request, or `n` siblings that arrive together.

    Attributes:
        arrive: it is added before this turn (from 0).
        abort: it is aborted in this turn; None, never.
        late: the abort comes while the turn's batch is computed, not before the turn.
        stop: token ids that end it, besides EOS where `ignore_eos` is false.
        salt: its `cache_salt`; 0 is none.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    arrive: int = 0
    abort: int | None = None
    late: bool = False
    priority: int = 0
    salt: int = 0
    n: int = 1
    ignore_eos: bool = True
    stop: tuple[int, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The engine's settings, by vLLM's names. `num_blocks` counts the null block."""

    block_size: int = 2
    num_blocks: int = 64
    max_model_len: int = 48
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    policy: str = "fcfs"


@dataclass(frozen=True)
class Speculation:
    """Who drafts, how much, and how well.

    Attributes:
        method: `ngram`, `eagle` or `draft_model`. In modes other than `sync` one of the latter two.
        k: tokens drafted per request and step, at most.
        acceptance: chance per cent that a draft is right, as long as those before it are.
        short: chance per cent that fewer than k are drafted, perhaps none; in mode `sync`.
    """

    method: str = "ngram"
    k: int = 1
    acceptance: int = 50
    short: int = 0

    @property
    def lookahead(self) -> int:
        """Slots behind a step's tokens for the drafter itself."""
        return 0 if self.method == "ngram" else self.k

    @property
    def rows(self) -> int:
        """Rows per request that drafting adds to a batch."""
        return int(self.method == "draft_model")


@dataclass(frozen=True)
class World:
    """What happens, to whom, in which settings.

    Attributes:
        mode: one of `MODES`.
        vocabulary: how many tokens a request may sample, EOS not counted. A small one makes prompts
            meet that were different.
        resets: (turn, are running requests preempted?): calls of `reset_prefix_cache` before turns.
        probes: at the end, does every job come again, with its answer as a part of its prompt, to
            read what was left in the cache?
        distinct: does each request arrive at a time of its own? vLLM gives siblings one time.
        in_flight: batches in flight at most, in modes other than `sync`. With one device two; with
            pipeline stages as many as there are.
        speculation: who drafts; None: nobody.
        name: where it came from.
    """

    settings: Settings
    jobs: tuple[Job, ...]
    mode: str = "sync"
    vocabulary: int = 3
    resets: tuple[tuple[int, bool], ...] = ()
    probes: bool = False
    distinct: bool = False
    in_flight: int = 2
    speculation: Speculation | None = None
    name: str = field(default="", compare=False)

    @property
    def least_blocks(self) -> int:
        """The null block, and what the longest request needs when it is alone."""
        s = self.settings
        past = 0
        if self.speculation is not None:  # drafts of all plans in flight, and the drafter's slots
            plans = 1 if self.mode == "sync" else self.in_flight
            past = plans * self.speculation.k + self.speculation.lookahead
        longest = max(min(len(j.prompt) + j.max_tokens + past, s.max_model_len) for j in self.jobs)
        return 1 - -longest // s.block_size

    @property
    def budget(self) -> int:
        """Tokens that a step may hold: with a draft model less than `max_num_batched_tokens`."""
        rows = self.speculation.rows if self.speculation is not None else 0
        return self.settings.max_num_batched_tokens - rows * self.settings.max_num_seqs

    @property
    def fair(self) -> bool:
        """Can every request end? The settings hold together, and each one fits when it is alone."""
        s = self.settings
        lengths = [len(job.prompt) for job in self.jobs]
        return (
            bool(lengths)
            and min(lengths) >= 1
            and max(lengths) < s.max_model_len
            and s.num_blocks >= self.least_blocks
            and self.budget >= s.max_num_seqs >= 1
            and (s.enable_chunked_prefill or self.budget >= s.max_model_len)
            and all(job.max_tokens >= 1 and job.n >= 1 for job in self.jobs)
        )

    def with_settings(self, **changes: Any) -> World:
        return replace(self, settings=replace(self.settings, **changes))

    def as_data(self) -> dict[str, Any]:
        """For JSON: what differs from the defaults."""

        def changed(one: Job | Settings, default: dict[str, Any]) -> dict[str, Any]:
            return {k: v for k, v in asdict(one).items() if k not in default or v != default[k]}

        plain_job = asdict(Job((), 0))
        return {
            "settings": asdict(self.settings),
            "jobs": [
                {"prompt": j.prompt, "max_tokens": j.max_tokens} | changed(j, plain_job)
                for j in self.jobs
            ],
            "mode": self.mode,
            "vocabulary": self.vocabulary,
            "resets": self.resets,
            "probes": self.probes,
        } | ({"speculation": asdict(self.speculation)} if self.speculation is not None else {})


def world_of(data: dict[str, Any]) -> World:
    """The inverse of `World.as_data`, tuples having become lists or not."""
    jobs = tuple(
        Job(**job | {"prompt": tuple(job["prompt"]), "stop": tuple(job.get("stop", ()))})
        for job in data["jobs"]
    )
    resets = tuple((int(turn), bool(running)) for turn, running in data.get("resets", ()))
    spec = Speculation(**data["speculation"]) if data.get("speculation") else None
    settings = Settings(**data["settings"])
    return World(
        **data | {"settings": settings, "jobs": jobs, "resets": resets, "speculation": spec}
    )


# -- what is right ----------------------------------------------------------------------------------


def prefixes(tokens: Sequence[int], salt: int, last: int | None = None) -> Iterator[int]:
    """At each position a number for the token there and all that came before it, the salt included.

    Equal sequences under equal salts have equal numbers; others, as good as never. `last`: the
    number of what comes before `tokens`.
    """
    number = hash((salt, 1)) if last is None else last
    for token in tokens:
        number = hash((number, token))  # of integers: the same in every process
        yield number


def sample(prefix: int, vocabulary: int) -> int:
    """The token that follows a prefix: what the model is here."""
    return EOS if prefix % EOS_ONE_IN == 0 else FIRST_TOKEN + prefix // 32 % vocabulary


def drafts(prefix: int, spec: Speculation, vocabulary: int, short: bool) -> list[int]:
    """What is drafted to follow a prefix. Behind a wrong token the drafter goes on with what it said.

    `short`: fewer than k may come.
    """
    count = spec.k
    if short and hash((prefix, 11)) % 100 < spec.short:
        count = hash((prefix, 12)) % spec.k  # k - 1 at most
    tokens: list[int] = []
    for _ in range(count):
        token = sample(prefix, vocabulary)
        if hash((prefix, 13)) % 100 >= spec.acceptance:
            token = FIRST_TOKEN + (token - FIRST_TOKEN + 1) % (vocabulary + 1)
        tokens.append(token)
        (prefix,) = prefixes([token], 0, prefix)
    return tokens


def answer(job: Job, settings: Settings, vocabulary: int) -> list[int]:
    """The tokens that a job gives when nobody disturbs it."""
    *_, last = prefixes(job.prompt, job.salt)
    tokens: list[int] = []
    while True:
        tokens.append(sample(last, vocabulary))
        (last,) = prefixes(tokens[-1:], job.salt, last)
        ended = not job.ignore_eos and tokens[-1] == EOS
        length = len(job.prompt) + len(tokens)
        if (
            ended
            or tokens[-1] in job.stop
            or len(tokens) >= job.max_tokens
            or length >= settings.max_model_len
        ):
            return tokens
