"""Errors that refuse a rule, and the bounds that keep one request from stopping the others."""

from __future__ import annotations

from dataclasses import dataclass


class RuleError(ValueError):
    """A rule that is refused. The message names what in it, and where."""


class UnsupportedRule(RuleError):
    """The rule is malformed, or uses syntax that the native automata do not have."""


class RuleTooLarge(RuleError):
    """The rule's automaton would pass one of the `Limits`."""


@dataclass(frozen=True)
class Limits:
    """Bounds on compiling one rule.

    All are checked while the automaton grows, so a rule of twenty characters that asks for a
    million states costs no more than one that asks for just as many as are allowed. A compiled
    automaton never grows: after compilation no rule can fail for its size.

    Attributes:
        nfa_states: states of the nondeterministic automaton; bounds what `{m,n}` may unfold to.
        dfa_states: states of the deterministic one; a state costs a row of its table and, once
            visited, a row of the bitmask.
        work: members of all state sets that the subset construction touches; bounds its time where
            few states are made of many.
        depth: groups inside groups, or schemas inside schemas; bounds the recursion of the parser.
        stacks: readings of one output that are followed at once, where a rule with a stack can be read
            in several ways. Those beyond are given up: what only they would allow is barred. Since each
            one that is kept can be finished, a token is always left.
        rules: that one schema may be taken apart into.
    """

    nfa_states: int = 50_000
    dfa_states: int = 20_000
    work: int = 2_000_000
    depth: int = 100
    stacks: int = 1_000
    rules: int = 2_000


DEFAULT_LIMITS = Limits()


def check_length(kind: str, rule: str, limits: Limits) -> None:
    """Refuse a rule whose text alone is longer than its automaton may be, before it is parsed."""
    if len(rule) > limits.nfa_states:
        raise RuleTooLarge(
            f"{kind}: {len(rule)} characters are more than the {limits.nfa_states} states that a "
            "rule may have"
        )
