"""Do `mini_vllm` and real vLLM give the same tokens? Run both on one checkpoint and compare.

    python -m course.parity.tokens [--model DIR] [--prompts N] [--alone N] [--max-tokens N] [--seed S]
                            [--attention numpy|torch|triton] [--speculative-config JSON]
                            [--async-scheduling] [--keep-stale-tables] [--sampled] [--chat] [--json FILE]

The same seeded prompts go through both engines, greedily, in float32:

* `together`: all at once, with prefix caching, and with chunked prefill under a small token budget.
* `alone`: some of them one after another in the same engines, on what `together` left cached.
* `preempted`: some of them in a KV cache too small for all, so that requests lose their blocks.

Compared are tokens, finish reasons, prefix cache hits, preemptions, and the log probability of
each token. A token that differs is shown with its prompt, its position and what both engines
thought of both tokens: two near equal log probabilities are a tie that float32 broke two ways, and
a wide gap is a bug. A position where the best two tokens lie within 1e-4 is listed as a near tie,
equal or not. One prompt in ten may run eight times as long, so that some texts come to their end.

With `--speculative-config` both engines draft, and the counts of their drafts are compared: how many there
were, of how many tokens, how many of those were accepted, and at which position. A folder that the JSON
names as `model` is that of the draft model or head. A fault of vLLM's that spoils drafts, but no token,
is lifted, unless `--keep-stale-tables` is given (docs/FOUND_IN_VLLM.md, 13).

With `--sampled` every prompt has a temperature, a seed and some of top-k, top-p, min-p and the penalties,
at random, and no prompt comes in chunks (`course.parity.sampled` says why). A token that differs is then
shown with what both engines drew from, the noise of both tokens and how close their race was. Without a
seed the two engines draw different numbers, and vLLM's CPU build ignores a request's seed unless every row
of its batch has one, where `mini_vllm` honours each
(`vllm/v1/sample/ops/topk_topp_sampler.py:178 in TopKTopPSampler.forward_cpu`).

With `--chat` texts are a user's turns, by the checkpoint's template.
Exit code 0: equal, 1: not, 2: bad arguments, no vLLM, or no such model. Each engine runs in a
process of its own (`course.parity.tokens_run`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course.parity.sampled import SAMPLED_TOP, Race, make_knobs
from course.parity.sampled import SETTINGS as SAMPLED_SETTINGS
from course.parity.tokens_run import TOP, Completion, Result, Scenario, run_engine

TOLERANCE = 1e-3
"""Largest difference allowed between the two engines' log probabilities of a token."""
NEAR_TIE = 1e-4
"""A best and a second token closer than this in log probability are a near tie."""

SENTENCES = (
    "The scheduler gives each running request its tokens before it admits a waiting one.",
    "A block table maps the logical blocks of a request to physical blocks in the KV cache.",
    "Chunked prefill cuts a long prompt into pieces, so that decodes need not wait for all of it.",
    "When the pool has no free block, the request that came last loses its own and starts over.",
    "Prefix caching finds blocks by a hash that is chained over all the tokens before them.",
    "What is a token? A token is the unit in which a language model reads and writes text.",
    "Why does decoding read so much memory? Each step loads every weight to make one token.",
    "Greedy sampling takes the token with the highest logit, and so it always answers the same.",
)
"""Text to cut prompts from where the corpus of the shipped model is not at hand."""


@dataclass
class Comparison:
    """What comparing two `Result`s found."""

    name: str
    requests: int = 0
    tokens: int = 0
    mismatches: list[str] = field(default_factory=list)
    near_ties: list[str] = field(default_factory=list)
    max_logprob_difference: float = 0.0
    preemptions: tuple[int, int] = (0, 0)
    cached_tokens: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)
    drafts: dict[str, list[int]] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return not self.mismatches and self.max_logprob_difference <= TOLERANCE


# -- prompts --------------------------------------------------------------------------------------


def corpus_texts(seed: int, count: int) -> list[str]:
    """Texts of the shipped model's corpus, or `SENTENCES` shuffled and joined without it."""
    rng = random.Random(seed)
    if importlib.util.find_spec("scripts") and importlib.util.find_spec("scripts.tiny_llama"):
        corpus = importlib.import_module("scripts.tiny_llama.corpus")
        documents = zip(range(count), corpus.Corpus(seed).documents(), strict=False)
        return [" ".join(text for _, text in document) for _, document in documents]
    return [" ".join(rng.sample(SENTENCES, len(SENTENCES))) for _ in range(count)]


def make_prompts(
    encode: Callable[[str], list[int]],
    vocab_size: int,
    count: int = 200,
    seed: int = 0,
    longest: int = 400,
) -> list[list[int]]:
    """Seeded, varied prompts of 1 to `longest` token ids.

    Args:
        encode: text to token ids.
        vocab_size: ids of the random prompts are below it.
        count: how many.
        seed: the same seed gives the same prompts.
        longest: most tokens in one.

    A quarter each: openings of a few words, text cut at any token, random ids, and repeats of an
    earlier prompt's head with another tail, which is what prefix caching feeds on. One prompt has a
    single token and one has `longest`.
    """
    rng = random.Random(seed)
    texts = [encode(text) for text in corpus_texts(seed, max(count, 8))]
    low = min(8, vocab_size - 1)  # the first ids of the shipped vocabulary are special

    def noise(length: int) -> list[int]:
        return [rng.randrange(low, vocab_size) for _ in range(length)]

    prompts: list[list[int]] = [[rng.randrange(low, vocab_size)], noise(longest)][:count]
    while len(prompts) < count:
        kind = len(prompts) % 4
        text = rng.choice(texts)
        if kind == 0:
            prompt = text[: rng.randint(2, 32)]
        elif kind == 1:
            long_text = text + [t for _ in range(6) for t in rng.choice(texts)]
            prompt = long_text[: rng.randint(20, longest)]
        elif kind == 2:
            prompt = noise(rng.randint(1, longest // 2))
        else:
            head = rng.choice(prompts)
            prompt = head[: rng.randint(1, len(head))] + text[: rng.randint(1, 40)]
        prompts.append(prompt[:longest])
    return prompts


def make_scenarios(
    prompts: Sequence[list[int]],
    alone: int = 40,
    max_tokens: int = 24,
    pool: int = 64,
    speculative_config: dict[str, Any] | None = None,
    async_scheduling: bool = False,
    knobs: Sequence[dict[str, Any]] | None = None,
    max_model_len: int = 1024,
) -> list[Scenario]:
    """The three scenarios; `alone` of the prompts run one by one, `pool` blocks are too few.

    `max_model_len` is the model's: of a published one it is cut to the pool, as vLLM asks. With `knobs`, one
    a prompt, they are sampled, and each prompt by the same ones everywhere.
    """
    normal: dict[str, Any] = {
        "max_num_batched_tokens": 96,
        "max_num_seqs": 48,
        "num_gpu_blocks_override": 1200,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
    }
    if speculative_config is not None:
        normal["speculative_config"] = speculative_config
    if async_scheduling:
        normal["async_scheduling"] = True
    if knobs is not None:
        normal |= SAMPLED_SETTINGS
    scarce = {**normal, "num_gpu_blocks_override": pool, "max_num_seqs": 16}
    scarce |= {"max_model_len": 16 * pool} if max_model_len > 1024 and knobs is None else {}
    stride = max(1, len(prompts) // max(alone, 1))
    everyone = list(range(len(prompts)))
    some = everyone[::stride][:alone]
    long = [number for number in everyone if len(prompts[number]) > 40][:80]

    def lengths(count: int) -> list[int]:
        return [max_tokens * (8 if i % 10 == 0 else 1) for i in range(count)]

    def scenario(
        name: str, settings: dict[str, Any], numbers: list[int], one_by_one: bool
    ) -> Scenario:
        sampling = None if knobs is None else [knobs[number] for number in numbers]
        return Scenario(
            name, settings, [prompts[number] for number in numbers], lengths(len(numbers)),
            one_by_one, sampling, TOP if knobs is None else SAMPLED_TOP,
        )  # fmt: skip

    return [
        scenario("together", normal, everyone, False),
        scenario("alone", normal, some, True),
        scenario("preempted", scarce, long, False),
    ]


# -- comparing ------------------------------------------------------------------------------------


def compare(
    scenario: Scenario, mini: Result, real: Result, vocab_size: int | None = None
) -> Comparison:
    """Compare what the two engines made of a scenario; see the module's docstring.

    A sampled scenario needs the `vocab_size`.
    """
    found = Comparison(
        scenario.name,
        preemptions=(mini.preemptions, real.preemptions),
        seconds=(mini.seconds, real.seconds),
        drafts=mini.drafts,
    )
    if len(mini.completions) != len(real.completions):
        found.mismatches.append(
            f"{len(mini.completions)} completions by mini_vllm, {len(real.completions)} by vLLM"
        )
    if mini.preemptions != real.preemptions:
        found.mismatches.append(
            f"{mini.preemptions} preemptions in mini_vllm, {real.preemptions} in vLLM"
        )
    for name in sorted(mini.drafts.keys() | real.drafts.keys()):
        counted, theirs_counted = mini.drafts.get(name), real.drafts.get(name)
        if counted != theirs_counted:
            found.mismatches.append(f"{name}: {counted} in mini_vllm, {theirs_counted} in vLLM")
    for number, (ours, theirs) in enumerate(zip(mini.completions, real.completions, strict=False)):
        prompt = scenario.prompts[number]
        where = f"prompt {number} ({len(prompt)} tokens, {_shown(prompt)})"
        found.requests += 1
        found.cached_tokens += ours.num_cached_tokens or 0
        race = None
        if scenario.sampling is not None and vocab_size is not None:
            race = Race(scenario.sampling[number]["seed"], vocab_size)
            where += f", {_shown_knobs(scenario.sampling[number])}"
        differences = _differences(ours, theirs, found, race)
        found.mismatches += [f"{where}: {text}" for text in differences]
        ties = _near_ties(theirs) if race is None else race.near_ties(theirs)
        found.near_ties += [f"{where}: {text}" for text in ties]
    return found


def _differences(
    ours: Completion, theirs: Completion, found: Comparison, race: Race | None
) -> Iterator[str]:
    pairs = zip(ours.token_ids, theirs.token_ids, strict=False)
    for position, (mine, other) in enumerate(pairs):
        if mine != other and race is not None:
            shown = race.describe(ours, theirs, position, mine, other)
            yield f"output token {position}: mini_vllm {mine}, vLLM {other}; {shown}"
            return
        if mine != other:
            tie = ", a near tie" if any(_near_ties(theirs, position)) else ""
            yield (
                f"output token {position}{tie}: mini_vllm {mine}, vLLM {other}; "
                f"logprobs in mini_vllm {_of(ours, position, mine, other)}, "
                f"in vLLM {_of(theirs, position, mine, other)}"
            )
            return  # what follows has another context
        found.tokens += 1
        difference = abs(ours.logprobs[position] - theirs.logprobs[position])
        if difference > found.max_logprob_difference:
            found.max_logprob_difference = difference
        if difference > TOLERANCE:
            yield (
                f"output token {position}: both {mine}, but its logprob is "
                f"{ours.logprobs[position]:.6f} and {theirs.logprobs[position]:.6f}"
            )
    for name in ("finish_reason", "num_cached_tokens"):
        if getattr(ours, name) != getattr(theirs, name):
            yield f"{name}: mini_vllm {getattr(ours, name)!r}, vLLM {getattr(theirs, name)!r}"
    if len(ours.token_ids) != len(theirs.token_ids):
        yield f"{len(ours.token_ids)} tokens by mini_vllm, {len(theirs.token_ids)} by vLLM"


def _of(completion: Completion, position: int, *token_ids: int) -> str:
    """The logprobs of tokens at a position, as far as they were among the best."""
    top = completion.top[position]
    shown = (f"{t}: {top[t]:.6f}" if t in top else f"{t}: not in the top {TOP}" for t in token_ids)
    return "{" + ", ".join(shown) + "}"


def _near_ties(completion: Completion, only: int | None = None) -> Iterator[str]:
    for position, top in enumerate(completion.top):
        if only not in (None, position):
            continue
        best = sorted(top.items(), key=lambda item: -item[1])[:2]
        if len(best) == 2 and best[0][1] - best[1][1] < NEAR_TIE:
            (first, high), (second, low) = best
            yield f"output token {position}: {first} at {high:.6f} and {second} at {low:.6f}"


def _shown(prompt: Sequence[int]) -> str:
    head = ", ".join(map(str, prompt[:6]))
    return f"[{head}{', …' if len(prompt) > 6 else ''}]"


def _shown_knobs(knobs: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in knobs.items()
    )


def _shown_drafts(drafts: dict[str, list[int]]) -> str:
    (num_drafts,), (drafted,) = drafts["drafts"], drafts["draft_tokens"]
    (accepted,), per_pos = drafts["accepted_tokens"], drafts["accepted_tokens_per_pos"]
    shares = ", ".join(f"{100 * count / max(num_drafts, 1):.1f} %" for count in per_pos)
    return f"{num_drafts} drafts of {drafted} tokens, {accepted} accepted, by position {per_pos}: {shares}"


def report(
    comparisons: Sequence[Comparison], most: int = 10, engines: str = "mini_vllm and vLLM"
) -> str:
    """Totals a scenario, then what differs and the near ties, at most `most` lines of each."""
    lines = []
    for c in comparisons:
        share = 100 * len(c.near_ties) / max(c.tokens, 1)
        lines.append(
            f"{c.name:10} {c.requests:4} requests {c.tokens:6} tokens equal, "
            f"{len(c.mismatches)} mismatches, logprobs within {c.max_logprob_difference:.1e}, "
            f"{len(c.near_ties)} near ties ({share:.3f} %), "
            f"{c.cached_tokens} prompt tokens from the prefix cache, "
            f"preemptions {c.preemptions[0]} and {c.preemptions[1]}, "
            f"{c.seconds[0]:.1f} s and {c.seconds[1]:.1f} s ({engines})"
        )
        if c.drafts:
            lines.append(f"{'':10} {_shown_drafts(c.drafts)}")
    for title, name in (("mismatch", "mismatches"), ("near tie", "near_ties")):
        for c in comparisons:
            items = getattr(c, name)
            lines += [f"{title}, {c.name}: {item}" for item in items[:most]]
            if len(items) > most:
                lines.append(f"{title}, {c.name}: and {len(items) - most} more")
    lines.append("equal" if all(c.equal for c in comparisons) else "NOT equal")
    return "\n".join(lines)


def run_comparison(
    model: str,
    count: int = 200,
    alone: int = 40,
    max_tokens: int = 24,
    seed: int = 0,
    *,
    attention: str = "numpy",
    pool: int = 64,
    longest: int = 400,
    speculative_config: dict[str, Any] | None = None,
    async_scheduling: bool = False,
    keep_stale_tables: bool = False,
    sampled: bool = False,
    chat: bool = False,
) -> list[Comparison]:
    """Make the prompts, run both engines on all scenarios, compare.

    Args:
        attention: `mini_vllm`'s backend; without a GPU, `triton` runs under Triton's interpreter.
        pool, longest: see `make_scenarios` and `make_prompts`.
        speculative_config, async_scheduling: both engines'.
        keep_stale_tables: vLLM as it is; see `tokens_run.clear_stale_tables`.
        sampled, chat: see the command's flags; sampled, `longest` is at most 256.
    """
    from mini_vllm.model_loader import find_model, load_config
    from mini_vllm.tokenizer import Tokenizer

    model = str(find_model(model))
    tokenizer = Tokenizer.from_folder(model)
    vocab_size = load_config(model).vocab_size
    longest = min(longest, 256) if sampled else longest

    def as_turn(text: str) -> list[int]:
        turn = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True)["input_ids"])

    encode = as_turn if chat else tokenizer.encode
    prompts = make_prompts(encode, vocab_size, count, seed, longest)
    knobs = make_knobs(count, seed) if sampled else None
    scenarios = make_scenarios(
        prompts, alone, max_tokens, pool, speculative_config, async_scheduling, knobs,
        load_config(model).max_model_len,
    )  # fmt: skip
    mini = run_engine("mini_vllm", model, scenarios, attention)
    real = run_engine("vllm", model, scenarios, keep_stale_tables=keep_stale_tables)
    return [compare(*each, vocab_size) for each in zip(scenarios, mini, real, strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code is in the module's docstring."""
    from mini_vllm.config.engine import DEFAULT_MODEL
    from mini_vllm.engine.arg_utils import json_object

    parser = argparse.ArgumentParser(
        prog="python -m course.parity.tokens",
        description="Compare mini_vllm's tokens with real vLLM's.",
    )
    parser.add_argument("--model", default=str(DEFAULT_MODEL), help="checkpoint folder, or smollm2")
    parser.add_argument("--prompts", type=int, default=200, help="prompts in all (200)")
    parser.add_argument("--alone", type=int, default=40, help="of these, also run alone (40)")
    parser.add_argument("--max-tokens", type=int, default=24, help="tokens for most (24)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (0)")
    parser.add_argument(
        "--attention", choices=("numpy", "torch", "triton"), default="numpy",
        help="what computes attention and model in mini_vllm (numpy)",
    )  # fmt: skip
    parser.add_argument(
        "--speculative-config", type=json_object, metavar="JSON",
        help="who drafts, in both engines (nobody)",
    )  # fmt: skip
    parser.add_argument(
        "--async-scheduling", action="store_true", help="plan ahead, in both engines (off)"
    )
    parser.add_argument(
        "--keep-stale-tables", action="store_true",
        help="leave a fault of vLLM's that spoils drafts: counters may differ",
    )  # fmt: skip
    parser.add_argument(
        "--sampled", action="store_true", help="at random temperatures and seeds, not greedily"
    )
    parser.add_argument("--chat", action="store_true", help="texts as a user's turns")
    parser.add_argument("--json", metavar="FILE", help="also write the comparison here")
    args = parser.parse_args(argv)
    if min(args.prompts, args.alone, args.max_tokens) < 1:
        parser.error("--prompts, --alone and --max-tokens must be at least 1")
    if args.sampled and args.speculative_config is not None:
        parser.error("--sampled and --speculative-config: drafts are judged by other draws")
    if importlib.util.find_spec("vllm") is None:
        print("course.parity.tokens: vllm is not installed; see SETUP.md", file=sys.stderr)
        return 2
    try:
        found = run_comparison(
            args.model, args.prompts, args.alone, args.max_tokens, args.seed,
            attention=args.attention, speculative_config=args.speculative_config,
            async_scheduling=args.async_scheduling, keep_stale_tables=args.keep_stale_tables,
            sampled=args.sampled, chat=args.chat,
        )  # fmt: skip
    except (ValueError, OSError, RuntimeError) as error:
        print(f"course.parity.tokens: {error}", file=sys.stderr)
        return 2
    print(report(found))
    if args.json:
        Path(args.json).write_text(json.dumps([*map(asdict, found)], indent=1) + "\n", "utf-8")
    return 0 if all(c.equal for c in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
