"""Lab 08-04: what speculation gains, what it costs, and when to do it. Your work: every NotImplementedError.

`k` is the number of draft tokens per request and step. An *unconditional* rate is the share of all drafts in
which the token at a position is accepted, and so are all before it. A *conditional* rate is the share among
only those drafts whose tokens before it were accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

# ---- given ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counters:
    """vLLM's counters, each since the server's start: `vllm:spec_decode_num_drafts` and so on."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]


@dataclass(frozen=True)
class Server:
    """What a step takes, in seconds. See the README's table."""

    dense_s: float
    row_s: float
    kv_token_s: float
    host_s: float
    draft_pass_s: float = 0.0
    draft_row_s: float = 0.0
    expert_s: float = 0.0
    num_experts: int = 1
    active: int = 1

    def weights_s(self, rows: float) -> float:
        """Reading the weights that a step of so many rows uses."""
        used = self.num_experts * (1 - (1 - self.active / self.num_experts) ** rows)
        return self.dense_s + used * self.expert_s


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the four questions of the README, under the names given there."""
    raise NotImplementedError


# ---- what is gained ------------------------------------------------------------------------------


def conditional_rates(rates: list[float]) -> list[float]:
    """Unconditional rates by position, made conditional. After a rate of 0 all are 0."""
    raise NotImplementedError


def unconditional_rates(conditional: list[float]) -> list[float]:
    """Conditional rates by position, made unconditional."""
    raise NotImplementedError


def expected_tokens(rates: list[float]) -> float:
    """Tokens that a request gets from a step on average, given unconditional rates; 1.0 without drafts."""
    raise NotImplementedError


def expected_tokens_at(a: float, k: int) -> float:
    """The same in closed form, if the conditional rate is `a`, 0 to 1, at each of `k` positions."""
    raise NotImplementedError


# ---- what is read --------------------------------------------------------------------------------


def since(now: Counters, before: Counters) -> Counters:
    """What was counted between two readings."""
    raise NotImplementedError


def log_line(counted: Counters) -> tuple[float, float, list[float]]:
    """What vLLM logs for these counts, which include at least one draft.

    Returns:
        "Mean acceptance length", "Avg Draft acceptance rate" in percent, and "Per-position acceptance rate".
    """
    raise NotImplementedError


# ---- what it costs -------------------------------------------------------------------------------


def step_seconds(server: Server, batch: int, k: int, context: int) -> float:
    """Seconds of a decode step of `batch` requests with `k` draft tokens each.

    The model: reading weights and KV overlaps with arithmetic, so the longer of the two counts. Each request
    has `context` tokens of KV, which are read once for all of its rows.

    The drafter: k passes, after the model has finished. The first takes all rows of the step, and each
    further one takes one row per request. A pass takes `draft_pass_s`, or `draft_row_s` per row, whichever is
    longer.

    The host: with asynchronous scheduling it works while the device does, so the longer of the two counts;
    without, one comes after the other. A server with `draft_pass_s` of 0 drafts by n-grams.

    With k = 0 the server was started without a `speculative_config`.
    """
    raise NotImplementedError


def speedup(server: Server, rates: list[float], batch: int, context: int) -> float:
    """Tokens per second with drafts over tokens per second without.

    Args:
        rates: unconditional, one for each draft token; none: 1.0.
    """
    raise NotImplementedError


def best_k(server: Server, rates: list[float], batch: int, context: int) -> int:
    """The number of draft tokens, 0 to len(rates), with the most tokens per second; of equals the least."""
    raise NotImplementedError


# ---- when to do it -------------------------------------------------------------------------------


class Controller:
    """Sets k from the counters and the batch. Add whatever methods and attributes you need."""

    def __init__(self, server: Server, most: int) -> None:
        """Args: the server, and the most draft tokens per request."""
        raise NotImplementedError

    def choose(self, counters: Counters, batch: int, context: int) -> int:
        """Draft tokens per request for the steps until the next call, 0 to `most`.

        The first call comes before anything was drafted; then one comes every eight steps.

        Args:
            counters: as they stand, with `most` positions. The step under way is not in them yet, so one
                step of eight had the previous k. You may neglect that.
            batch, context: running requests, and their mean number of tokens.
        """
        raise NotImplementedError
