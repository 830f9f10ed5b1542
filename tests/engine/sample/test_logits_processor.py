"""Logits processors: what they hear of the batch, how they are found, and the same file in both engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

import mini_vllm
from mini_vllm.sample import logitsprocs
from mini_vllm.sample.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessors,
    MoveDirectionality,
    build_logitsprocs,
    make_batch_update,
)
from mini_vllm.sample.logitsprocs import load_logitsprocs
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.sampling import logits_processors as both
from tests.engine.helpers.thorough import either


@dataclass(eq=False)
class Row:
    """A request, told from others by what it is and not by what it holds."""

    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    prompt_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)


# -- what a processor hears -----------------------------------------------------------------------


def random_batches(rng: np.random.Generator, steps: int) -> list[list[Row]]:
    """Batches that follow each other: rows leave, come, come back, and stand in another order."""
    everyone = [Row() for _ in range(12)]
    batches: list[list[Row]] = [[]]
    for _ in range(steps):
        rows = [row for row in batches[-1] if rng.random() < 0.8]
        others = [row for row in everyone if row not in rows]
        for row in others:
            if rng.random() < 0.25:
                rows.insert(int(rng.integers(len(rows) + 1)), row)
        if rng.random() < 0.4:
            rng.shuffle(rows)  # type: ignore[arg-type]
        batches.append(rows)
    return batches


def replay(
    places: dict[int, list[int]], update: BatchUpdate | None, order: tuple[str, ...]
) -> None:
    """Follow an update as a processor does that remembers each row's output list."""
    for kind in order if update is not None else ():
        assert update is not None
        if kind == "removed":
            for row in update.removed:
                places.pop(row, None)
        elif kind == "added":
            for row, _, _, output_ids in update.added:
                places[row] = output_ids
        else:
            for source, target, direction in update.moved:
                moving, displaced = places.pop(source, None), places.pop(target, None)
                if moving is not None:
                    places[target] = moving
                if displaced is not None and direction is MoveDirectionality.SWAP:
                    places[source] = displaced


@pytest.mark.parametrize("order", [("removed", "added", "moved"), ("added", "removed", "moved")])
def test_who_follows_the_updates_knows_every_row(order: tuple[str, ...]) -> None:
    """In the order of vLLM's interface, and in the one in which vLLM's own processors read an update."""
    for seed in range(either(30, 300)):
        places: dict[int, list[int]] = {}
        before: list[Row] = []
        for rows in random_batches(np.random.default_rng(seed), 12):
            update = make_batch_update(before, rows)
            replay(places, update, order)
            assert {row: id(ids) for row, ids in places.items()} == {
                i: id(row.output_token_ids) for i, row in enumerate(rows)
            }, f"seed {seed}: {update}"
            assert update is None or update.batch_size == len(rows), seed
            assert (update is None) == (before == rows), f"seed {seed}: {update}"
            before = rows


def test_an_update_says_no_more_than_has_happened() -> None:
    """New requests take the free rows from the lowest up; a row that is taken again is not removed."""
    a, b, c, d, e = (Row(prompt_token_ids=[i]) for i in range(5))
    update = make_batch_update([a, b, c], [a, d, c])
    assert update is not None
    assert (update.removed, update.moved) == ([], [])
    assert update.added == [(1, d.sampling_params, [3], d.output_token_ids)]
    assert update.added[0][3] is d.output_token_ids, "the live list"
    update = make_batch_update([a, b, c, d], [d, b, e])
    assert update is not None
    assert [row for row, *_ in update.added] == [0]
    assert update.moved == [
        (3, 0, MoveDirectionality.SWAP),
        (3, 2, MoveDirectionality.UNIDIRECTIONAL),
    ]
    assert update.removed == [], "row 2 was filled, and row 3 has moved"
    update = make_batch_update([a, b, c, d], [a])
    assert update is not None
    assert update.removed == [3, 2, 1], "from the highest down, as upstream"


@pytest.mark.vllm
def test_vllms_own_processors_understand_our_updates() -> None:
    """Its minimum probabilities and biases stand in the right rows."""
    import torch
    import vllm
    from vllm.v1.sample.logits_processor import (
        LogitBiasLogitsProcessor,
        MinPLogitsProcessor,
    )

    config, cpu = vllm.config.VllmConfig(), torch.device("cpu")
    for seed in range(either(10, 100)):
        min_p = MinPLogitsProcessor(config, cpu, False)
        bias = LogitBiasLogitsProcessor(config, cpu, False)
        before: list[Row] = []
        rng = np.random.default_rng(seed)
        batches = random_batches(rng, 12)
        for row in {id(row): row for rows in batches for row in rows}.values():
            params = SamplingParams(min_p=float(rng.choice([0, 0.25, 0.5])))
            params.logit_bias = {3: float(rng.random())} if rng.random() < 0.5 else None
            row.sampling_params = params
        for rows in batches:
            update: Any = make_batch_update(before, rows)
            min_p.update_state(update)
            bias.update_state(update)
            wanted = [row.sampling_params.min_p for row in rows]
            assert [min_p.get_min_p_by_index(i) for i in range(len(rows))] == wanted, seed
            assert bias.biases == {
                i: row.sampling_params.logit_bias
                for i, row in enumerate(rows)
                if row.sampling_params.logit_bias
            }, seed
            before = rows


# -- when it is asked -----------------------------------------------------------------------------


def test_kinds_stand_apart_and_keep_their_order() -> None:
    class Invariant(both.ForcePhrase):
        def is_argmax_invariant(self) -> bool:
            return True

    config = mini_vllm.EngineConfig()
    made = build_logitsprocs(config, [Invariant, both.ForcePhrase, both.SayNothingTwice])
    assert [type(p).__name__ for p in made.non_argmax_invariant] == [
        "ForcePhrase",
        "SayNothingTwice",
    ]
    assert [type(p).__name__ for p in made.argmax_invariant] == ["Invariant"]
    assert made
    assert not LogitsProcessors()


def test_an_adapter_gives_a_processor_what_it_takes() -> None:
    """Two arguments: output and logits. Three: the prompt first. None: the row is left alone."""
    heard: list[tuple[list[int], ...]] = []

    def two(output_ids: list[int], logits: np.ndarray) -> np.ndarray:
        heard.append((output_ids,))
        return logits + 1

    def three(prompt_ids: list[int], output_ids: list[int], logits: np.ndarray) -> np.ndarray:
        heard.append((prompt_ids, output_ids))
        return logits + 2

    class Adapter(AdapterLogitsProcessor):
        def is_argmax_invariant(self) -> bool:
            return True

        def new_req_logits_processor(self, params: SamplingParams) -> Any:
            return {0: None, 2: two, 3: three}[(params.extra_args or {})["takes"]]

    rows = [Row(SamplingParams(extra_args={"takes": n}), [7], [8]) for n in (0, 2, 3)]
    processor = Adapter(None, "cpu", False)
    processor.update_state(make_batch_update([], rows))
    rows[1].output_token_ids.append(9)
    assert processor.apply(np.zeros((3, 2), np.float32)).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert heard == [([8, 9],), ([7], [8])], "the output is the list that grows"
    processor.update_state(make_batch_update(rows, rows[2:]))
    assert processor.apply(np.zeros((1, 2), np.float32)).tolist() == [[2, 2]]


# -- how it is found ------------------------------------------------------------------------------

HERE = "tests.engine.helpers.sampling.logits_processors"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ForcePhrase", "named as module:Class, got 'ForcePhrase'"),
        (f"{HERE}:", "named as module:Class"),
        ("no.such.module:Class", "'no.such.module:Class' cannot be loaded: No module"),
        (f"{HERE}:Missing", "cannot be loaded: module .* has no attribute 'Missing'"),
        (f"{HERE}:requests", "a class with the methods apply, is_argmax_invariant"),
        (SamplingParams, "without apply, is_argmax_invariant, update_state"),
    ],
)
def test_what_is_no_processor_is_named(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_logitsprocs([given])
    with pytest.raises(ValueError, match=words):
        mini_vllm.LLM(logits_processors=[given], num_gpu_blocks=8)


def test_one_string_is_no_list() -> None:
    with pytest.raises(ValueError, match="logits_processors must be a list"):
        mini_vllm.EngineConfig(logits_processors=f"{HERE}:ForcePhrase")


def test_installed_processors_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of vLLM's group is loaded; one that fails is named."""
    group = "vllm.logits_processors"
    points = [EntryPoint("twice", f"{HERE}:SayNothingTwice", group)]
    monkeypatch.setattr(logitsprocs, "entry_points", lambda group: points)
    anew = logitsprocs.installed_logitsprocs.__wrapped__  # the cached one has been asked before
    monkeypatch.setattr(logitsprocs, "installed_logitsprocs", anew)
    assert load_logitsprocs([f"{HERE}:ForcePhrase"]) == [both.SayNothingTwice, both.ForcePhrase]
    points[:] = [EntryPoint("lost", "no.such.module:Class", group)]
    with pytest.raises(ValueError, match="plug-in lost: No module"):
        load_logitsprocs([])


def test_with_drafts_no_processor_is_given() -> None:
    config = mini_vllm.EngineConfig(
        logits_processors=[both.ForcePhrase],
        speculative_config={"method": "ngram", "num_speculative_tokens": 2},
    )
    with pytest.raises(ValueError, match=r"cannot be used with a speculative_config, got .*Phrase"):
        build_logitsprocs(config, config.logits_processors)
    assert not build_logitsprocs(config, None)


def test_a_request_that_a_processor_refuses_is_refused() -> None:
    llm = mini_vllm.LLM(logits_processors=[both.ForcePhrase], num_gpu_blocks=8, max_model_len=64)
    bad = SamplingParams(extra_args={"phrase": [], "at": 0}, max_tokens=1)
    with pytest.raises(ValueError, match="phrase must hold a token"):
        llm.generate([[1, 5]], bad, use_tqdm=False)
    assert len(llm.generate([[1, 5]], SamplingParams(max_tokens=1), use_tqdm=False)) == 1


# -- one file, two engines ------------------------------------------------------------------------


def check_requests(found: dict[str, Any]) -> None:
    """Phrases stand where they were asked for, and nothing is said twice where that was."""
    assert found["preempted"] > 0, "nobody was preempted: the pool is too big for this test"
    for number, (one, tokens) in enumerate(zip(both.requests(), found["tokens"], strict=True)):
        extra = one["extra_args"] or {}
        assert len(tokens) == one["max_tokens"], number
        if "phrase" in extra:
            at, phrase = extra["at"], extra["phrase"]
            assert tokens[at : at + len(phrase)] == phrase[: len(tokens) - at], number
        elif extra:
            said = one["prompt"] + tokens
            assert len(set(tokens)) == len(tokens), number
            assert not set(tokens) & set(one["prompt"]), f"{number}: {said}"


def test_processors_follow_their_requests_through_the_engine() -> None:
    found = both.play("mini_vllm", named=False)
    check_requests(found)
    assert both.play("mini_vllm", named=True) == found


@pytest.mark.vllm
def test_the_same_file_runs_in_real_vllm() -> None:
    """The same tokens of 24 requests, with rows that come, go and are preempted."""
    from course.parity.tokens_run import run_worker

    found = run_worker(HERE, ["vllm"], True)
    check_requests(found)
    assert both.play("mini_vllm", named=True) == found
    assert not issubclass(both.ForcePhrase, LogitsProcessor), "the class is vLLM's, not ours"


def test_directions_are_equal_across_engines() -> None:
    """A file that was written for vLLM compares with vLLM's own names."""
    for direction in MoveDirectionality:
        assert direction == both._interface.MoveDirectionality[direction.name]
    assert MoveDirectionality.SWAP != MoveDirectionality.UNIDIRECTIONAL
