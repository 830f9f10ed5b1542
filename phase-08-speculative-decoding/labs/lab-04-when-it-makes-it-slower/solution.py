"""Lab 08-04: what speculation gains, what it costs, and when to do it. One solution.

`k` is the number of draft tokens per request and step. An *unconditional* rate is the share of all drafts in
which the token at a position is accepted, and so are all before it. A *conditional* rate is the share among
only those drafts whose tokens before it were accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

PROBE_EVERY = 8
"""Calls with k = 0 after which one draft is tried again."""
FORGET = 0.7
"""What older counts weigh at each call."""
PRIOR = 4.0
"""How many drafts a guess weighs: that a position is accepted like the one before it."""

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
    return {
        "56 % of five": [3.8, 36.0],
        "conditional 0.75": [3.288, 0.4219],
        "n-gram alone": [1.25],
        "rows for nothing": [49, 295],
    }


# ---- what is gained ------------------------------------------------------------------------------


def conditional_rates(rates: list[float]) -> list[float]:
    """Unconditional rates by position, made conditional."""
    conditional, before = [], 1.0
    for rate in rates:
        conditional.append(rate / before if before > 0 else 0.0)
        before = rate
    return conditional


def unconditional_rates(conditional: list[float]) -> list[float]:
    """Conditional rates by position, made unconditional."""
    rates, product = [], 1.0
    for rate in conditional:
        product *= rate
        rates.append(product)
    return rates


def expected_tokens(rates: list[float]) -> float:
    """Tokens per request and step, from unconditional rates."""
    return 1 + sum(rates)


def expected_tokens_at(a: float, k: int) -> float:
    """The same, if the conditional rate is `a` at each of `k` positions."""
    return (1 - a ** (k + 1)) / (1 - a) if a < 1 else float(k + 1)


# ---- what is read --------------------------------------------------------------------------------


def since(now: Counters, before: Counters) -> Counters:
    """What was counted between two readings."""
    pairs = zip(now.num_accepted_tokens_per_pos, before.num_accepted_tokens_per_pos, strict=True)
    return Counters(
        now.num_drafts - before.num_drafts,
        now.num_draft_tokens - before.num_draft_tokens,
        now.num_accepted_tokens - before.num_accepted_tokens,
        tuple(after - earlier for after, earlier in pairs),
    )


def log_line(counted: Counters) -> tuple[float, float, list[float]]:
    """vLLM's "Mean acceptance length", "Avg Draft acceptance rate" in percent, and the rates by position."""
    drafts = counted.num_drafts
    return (
        1 + counted.num_accepted_tokens / drafts,
        100 * counted.num_accepted_tokens / counted.num_draft_tokens,
        [count / drafts for count in counted.num_accepted_tokens_per_pos],
    )


# ---- what it costs -------------------------------------------------------------------------------


def step_seconds(server: Server, batch: int, k: int, context: int) -> float:
    """Seconds of a decode step of `batch` requests with `k` draft tokens each."""
    rows = batch * (k + 1)
    memory = server.weights_s(rows) + batch * context * server.kv_token_s
    device = max(memory, rows * server.row_s)
    if k == 0:
        return max(device, server.host_s)
    if server.draft_pass_s == 0:
        return device + server.host_s
    for pass_rows in [rows] + [batch] * (k - 1):
        device += max(server.draft_pass_s, pass_rows * server.draft_row_s)
    return max(device, server.host_s)


def speedup(server: Server, rates: list[float], batch: int, context: int) -> float:
    """Tokens per second with drafts over tokens per second without."""
    plain = step_seconds(server, batch, 0, context)
    return expected_tokens(rates) * plain / step_seconds(server, batch, len(rates), context)


def best_k(server: Server, rates: list[float], batch: int, context: int) -> int:
    """The number of draft tokens, 0 to len(rates), with the most tokens per second; of equals the least."""
    gains = [speedup(server, rates[:k], batch, context) for k in range(len(rates) + 1)]
    return gains.index(max(gains))


# ---- when to do it -------------------------------------------------------------------------------


class Controller:
    """Sets k from the counters and the batch."""

    def __init__(self, server: Server, most: int) -> None:
        self.server = server
        self.most = most
        self.k = self.idle = 0
        self.before = Counters(0, 0, 0, (0,) * most)
        self.reached = [0.0] * most  # drafts whose tokens before this position were accepted
        self.accepted = [0.0] * most

    def choose(self, counters: Counters, batch: int, context: int) -> int:
        """Draft tokens per request for the steps until the next call, 0 to `most`."""
        counted, self.before = since(counters, self.before), counters
        if counted.num_drafts:
            self.learn(counted)
        self.k = best_k(self.server, unconditional_rates(self.estimate()), batch, context)
        self.idle = self.idle + 1 if self.k == 0 else 0
        if self.idle == PROBE_EVERY:
            self.idle, self.k = 0, 1
        return self.k

    def learn(self, counted: Counters) -> None:
        """Take in what was counted since the last call. Only the first k positions were drafted."""
        arrived = counted.num_drafts
        for position, hits in enumerate(counted.num_accepted_tokens_per_pos):
            drafted = position < self.k
            self.reached[position] = FORGET * self.reached[position] + drafted * arrived
            self.accepted[position] = FORGET * self.accepted[position] + drafted * hits
            arrived = hits

    def estimate(self) -> list[float]:
        """Conditional rates by position."""
        rates, before = [], 0.6
        for accepted, reached in zip(self.accepted, self.reached, strict=True):
            before = (accepted + PRIOR * before) / (reached + PRIOR)
            rates.append(before)
        return rates
