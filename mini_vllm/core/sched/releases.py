"""What later releases of vLLM decide otherwise than the pin: each change is a rule with its first release.

A rule is put on a scheduler after that is made. It takes the place of one of its methods, or of its
manager's or its pool's, so a scheduler of the pin has no rule and asks after none. `EngineConfig.rules` names
the release to decide like. `python -m course drift` replays what each release's own scheduler decided, and
shows which rule makes the difference where (docs/RELEASES.md).

Left out, because nothing here meets it: Mamba, connectors, encoders, data parallelism, the pauses and budgets
that a user must turn on, and runner V2, which from 0.23 on is also told of preempted requests in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mini_vllm.config.scheduler import PIN, RELEASES
from mini_vllm.core.sched import release_rules, release_windows
from mini_vllm.core.sched.scheduler import Scheduler

__all__ = ["PIN", "RELEASES", "RULES", "Rule", "put_on", "rules_of"]


@dataclass(frozen=True)
class Rule:
    """One decision that a later release takes otherwise.

    Attributes:
        name: what is decided.
        first: the first release that decides so.
        says: the rule, in a sentence.
        put_on: puts it on a scheduler that has the rules before it.
        source: its pull request or issue of vLLM's; None: not found.
        until: the first release that no longer decides so; None: the newest does.
    """

    name: str
    first: str
    says: str
    put_on: Callable[[Scheduler], None]
    source: int | None = None
    until: str | None = None

    def holds_in(self, release: str) -> bool:
        at = RELEASES.index(release)
        return RELEASES.index(self.first) <= at and (
            self.until is None or at < RELEASES.index(self.until)
        )


def rules_of(release: str) -> tuple[Rule, ...]:
    """The rules of a release; none for the pin.

    Raises ValueError for a release that is none of `RELEASES`.
    """
    if release not in RELEASES:
        raise ValueError(f"rules must be one of {', '.join(RELEASES)}, got {release!r}")
    return tuple(rule for rule in RULES if rule.holds_in(release))


def put_on(scheduler: Scheduler, rules: Iterable[Rule]) -> None:
    """Have a new scheduler decide by these rules, too."""
    for rule in rules:
        rule.put_on(scheduler)


RULES = (
    Rule(
        "lookahead slots",
        "0.23.0",
        "A request gets the slots for its drafter's own passes with its first tokens, not one step later.",
        release_rules.look_ahead_at_admission,
        43733,
    ),
    Rule(
        "blocks that fall out of a window",
        "0.23.0",
        "In the groups of a model with windows, blocks that were never published go to the "
        "front of the free queue.",
        release_windows.free_windows_first,
        43447,
        until="0.24.0",
    ),
    Rule(
        "a window of one token",
        "0.23.0",
        "A window of one token publishes no block, since no hit needs one.",
        release_windows.cache_nothing_of_one_token,
        43447,
    ),
    Rule(
        "what EAGLE gives up",
        "0.23.0",
        "Where groups have blocks of different sizes, the block behind the last place where a hit can end is "
        "published, too: EAGLE gives it up, and would else find no hit.",
        release_rules.cache_what_eagle_gives_up,
        44082,
    ),
    Rule(
        "freed blocks without a hash",
        "0.24.0",
        "They go to the front of the free queue, wherever they come from: what can never be hit again is "
        "taken before what can.",
        release_rules.free_all_unhashed_first,
        42656,
    ),
    Rule(
        "freed blocks without prefix caching",
        "0.27.0",
        "With prefix caching off they go to the back again, as at the pin.",
        release_rules.free_as_ever_without_caching,
        48017,
        until="0.28.0",
    ),
    Rule(
        "an admitted decode beside drafts",
        "0.25.0",
        "A request that is admitted with one token left is padded with placeholders to the length of the "
        "other rows, if decodes run and no prompt does; it waits if that finds no room.",
        release_rules.pad_admitted_decodes,
        45237,
    ),
    Rule(
        "preempted by a reset",
        "0.25.0",
        "The next plan names the requests that a reset of the prefix cache has preempted among "
        "the preempted.",
        release_rules.report_reset_as_preempted,
    ),
    Rule(
        "windows of plans in flight",
        "0.26.0",
        "A block stays until no plan in flight reads it, and a request may hold as many blocks more; with "
        "asynchronous scheduling two plans are in flight.",
        release_windows.keep_windows_in_flight,
        47728,
    ),
    Rule(
        "the tail of a prompt beside EAGLE",
        "0.26.0",
        "Where groups have blocks of different sizes, the block of full attention in which a prompt ends is "
        "published with what it has, so when it is free it is among the last to go.",
        release_rules.publish_prompt_tails,
        46384,
    ),
    Rule(
        "a draft model's rows",
        "0.28.0",
        "They are taken from the budget for each request that is scheduled, not for `max_num_seqs` of them.",
        release_rules.count_draft_rows_by_request,
        51725,
    ),
    Rule(
        "a victim that was passed over",
        "0.28.0",
        "Under `priority`, preempting a request that stood before and got nothing skips no other.",
        release_rules.recount_victims,
        49097,
    ),
    Rule(
        "padding at the end",
        "0.29.0",
        "An admitted decode that has no room for placeholders before `max_model_len` runs without them.",
        release_rules.pad_with("only_with_room"),
        53812,
    ),
    Rule(
        "checkpoints of windows",
        "0.29.0",
        "Of a window's blocks only those are published that a hit on the same prompt will read, or one where "
        "another prompt had parted from it.",
        release_windows.keep_checkpoints,
        52216,
    ),
    Rule(
        "checkpoints beside EAGLE",
        "0.30.0",
        "They allow for the block that EAGLE gives up, and one more is kept for longer prompts that begin "
        "with this one.",
        release_windows.keep_checkpoints_of_longer_prompts,
        54713,
    ),
    Rule(
        "padding the first",
        "0.30.0",
        "The first request of a step is padded, too, if the prefix cache has all but its last token.",
        release_rules.pad_with("also_first"),
        55126,
    ),
    Rule(
        "a request alone",
        "0.31.0",
        "`long_prefill_token_threshold` does not hold for the only request there is.",
        release_rules.no_threshold_alone,
        57951,
    ),
    Rule(
        "a hit beside EAGLE in several groups",
        "0.32.0",
        "The block that EAGLE gives up may be the one with the prompt's last token.",
        release_rules.look_past_the_last_token,
    ),
    Rule(
        "behind a victim",
        "0.33.0",
        "Under `priority`, when a request preempts itself those behind it are still served.",
        release_rules.serve_behind_victims,
        26765,
    ),
    Rule(
        "when accepted drafts are published",
        "0.33.0",
        "Their blocks are published with the result that confirms them, not with the next plan.",
        release_rules.publish_with_the_result,
    ),
    Rule(
        "a hash beside EAGLE",
        "0.33.0",
        "A block's hash covers the token after it as well, so a hit gives up no block.",
        release_rules.hash_with_the_next_token,
        50438,
    ),
)
"""In the order in which they are put on."""
