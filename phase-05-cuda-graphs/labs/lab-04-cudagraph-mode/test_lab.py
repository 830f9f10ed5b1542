"""Lab 05-04: which graph a step gets, by hand, against vLLM's own answers, and in the engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm import LLM, SamplingParams
from mini_vllm.cudagraph import BatchDescriptor, CUDAGraphMode
from mini_vllm.engine.parts import EngineParts

support = load_support(__file__)
NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
BOTH, DECODE_ONLY = CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY


def refusal(call: Callable[[], Any], what: str) -> str:
    """The words with which a call is refused, which must be a ValueError's."""
    try:
        got = call()
    except ValueError as error:
        return str(error)
    return pytest.fail(f"{what} is an error, and you give {got}")


def made(
    lab: ModuleType,
    mode: CUDAGraphMode = BOTH,
    sizes: Any = (),
    max_num_seqs: int = 256,
    query_len: int = 1,
) -> Any:
    """A dispatcher, with the ladder of 256 people unless another is given."""
    return lab.CudagraphDispatcher(mode, list(sizes or support.DEFAULT), max_num_seqs, query_len)


def keys(dispatcher: Any, mode: CUDAGraphMode) -> list[tuple[int, int | None, bool]]:
    """The keys of a mode, as tuples, rising."""
    found = dispatcher.cudagraph_keys[mode]
    return sorted((key.num_tokens, key.num_reqs, key.uniform) for key in found)


def told(mode: CUDAGraphMode, key: BatchDescriptor) -> str:
    """`FULL 40 of 40, uniform`, `PIECEWISE 40`, `NONE 513`."""
    requests = "" if key.num_reqs is None else f" of {key.num_reqs}"
    return f"{mode.name} {key.num_tokens}{requests}{', uniform' * key.uniform}"


def runs(dispatcher: Any, num_tokens: int, uniform: bool = False, *invalid: CUDAGraphMode) -> str:
    """How a step runs, as `told` says it."""
    mode, key = dispatcher.dispatch(num_tokens, uniform, frozenset(invalid))
    assert isinstance(key, BatchDescriptor), f"{num_tokens} tokens: a BatchDescriptor, not {key!r}"
    return told(mode, key)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The eight predictions match how vLLM's dispatcher ran these steps."""

    def ran(seqs: int, mode: str, num_tokens: int, uniform: bool, cascade: bool = False) -> str:
        ladder = support.grid.Ladder(seqs, 8192)
        [answer] = [a for t, a in support.recorded() if t == support.grid.Table(ladder, mode)]
        row = support.grid.ROWS.index((uniform, ("FULL",) if cascade else ()))
        cells = support.cells(answer.split("; ")[row])
        said = cells[num_tokens - 1] if num_tokens <= len(cells) else "NONE"
        return f"NONE {num_tokens}" if said == "NONE" else said.split("/")[0]

    both, decode_only = "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"
    facts = {
        "Kim alone": (ran(256, both, 1, True), "Is there a graph for one request that decodes?"),
        "33 decode": (ran(256, both, 33, True), "Which is the next size?"),
        "33 decode, for 33": (
            ran(33, both, 33, True), "Up to which size are graphs FULL, and which graphs has the next?",
        ),
        "32 decode, and Lou's prompt of 8": (ran(256, both, 40, False), "Has each as many tokens?"),
        "33 prompts with one token left": (
            ran(256, both, 33, True), "Is it compared where tokens come from, or how many there are?",
        ),
        "33 decode, Lou sends 3,000 tokens": (ran(256, both, 3033, False), "Which is the largest size?"),
        "33 decode, FULL_DECODE_ONLY and Lou's prompt of 8": (
            ran(256, decode_only, 41, False), "What has this mode for mixed batches, and is that padded?",
        ),
        "256 decode, cascade": (
            ran(256, both, 256, True, True), "Which mode is forbidden, and which is left?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"eight questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        shape = re.fullmatch(r"(NONE|PIECEWISE|FULL) [1-9]\d*", str(said[name]))
        assert shape, (
            f"{name}: {said[name]!r} has another form than asked for, before anything is compared: NONE, "
            "PIECEWISE or FULL, a blank, and the rows in digits alone"
        )
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


def test_equal_counts_are_enough(lab: ModuleType) -> None:
    """Each request's count makes a batch uniform: not whether it decodes, and not the average."""
    for counts, query_len, want in [
        ([1], 1, True), ([1, 1, 1], 1, True), ([1, 2, 1], 1, False), ([3000, 1, 1], 1, False),
        ([2, 2], 1, False), ([4, 4, 4], 4, True), ([1, 1, 1], 4, False), ([3, 5, 4], 4, False),
        ([4, 4, 1], 4, False), ([4, 8], 4, False), ([7], 1, False), ([1, 1, 2], 1, False),
    ]:  # fmt: skip
        got = lab.is_uniform_decode(counts, query_len)
        assert got is want, f"tokens {counts}, a decode has {query_len}: {want}, yours {got}"


# ---- the keys ------------------------------------------------------------------------------------


def test_the_keys_of_each_mode(lab: ModuleType) -> None:
    """For four sizes and three requests at most, each mode has the right graphs, for the right requests."""
    pieces = [(1, None, False), (2, None, False), (4, None, False), (8, None, False)]
    mixed = [(1, 1, False), (2, 2, False), (4, 3, False), (8, 3, False)]
    uniform = [(1, 1, True), (2, 2, True)]
    for mode, in_pieces, full in [
        (NONE, [], []), (PIECEWISE, pieces, []), (FULL, [], mixed), (DECODE_ONLY, [], uniform),
        (BOTH, pieces, uniform),
    ]:  # fmt: skip
        dispatcher = made(lab, mode, [1, 2, 4, 8], 3)
        for kind, want in ((PIECEWISE, in_pieces), (FULL, full)):
            got = keys(dispatcher, kind)
            assert got == want, (
                f"{mode.name}, sizes 1, 2, 4, 8, max_num_seqs 3: its {kind.name} keys are {want}, as "
                f"(tokens, requests, uniform); yours {got}"
            )


def test_full_keys_in_whole_requests(lab: ModuleType) -> None:
    """For decodes of four tokens, FULL keys go from one request to `max_num_seqs` requests."""
    got = keys(made(lab, DECODE_ONLY, [4, 8, 12, 16, 20], 3, 4), FULL)
    want = [(4, 1, True), (8, 2, True), (12, 3, True)]
    assert got == want, (
        f"three requests of 4 tokens, (tokens, requests, uniform): {want}, yours {got}"
    )
    got = keys(made(lab, DECODE_ONLY, [2, 4, 8], 3, 4), FULL)
    want = [(4, 1, True), (8, 2, True)]
    assert got == want, f"sizes 2, 4, 8: 2 is less than a request of 4, so {want}, yours {got}"
    got = keys(made(lab, FULL, [1, 8], 3, 4), FULL)
    want = [(1, 1, False), (8, 3, False)]
    assert got == want, f"FULL for all knows no uniform batch, so {want}, yours {got}"


def test_what_is_recorded_first(lab: ModuleType) -> None:
    """Pieces are recorded before FULL graphs, and the largest size comes first."""
    got = made(lab, BOTH, [1, 2, 4, 8], 3).get_capture_descs()
    told = [(mode.name, [key.num_tokens for key in found]) for mode, found in got]
    want = [("PIECEWISE", [8, 4, 2, 1]), ("FULL", [2, 1])]
    assert told == want, f"{want}, yours {told}"
    for mode, names in [(NONE, []), (PIECEWISE, ["PIECEWISE"]), (FULL, ["FULL"])]:
        got = [kind.name for kind, _ in made(lab, mode, [1, 2]).get_capture_descs()]
        assert got == names, f"{mode.name}: only modes with keys, {names}; yours {got}"
    count = sum(len(found) for _, found in made(lab).get_capture_descs())
    assert count == 86, f"256 people: 51 in pieces and 35 FULL, 86; yours {count}"


# ---- a step --------------------------------------------------------------------------------------


def step(
    dispatcher: Any, num_tokens: int, uniform: bool, want: str, why: str, *invalid: CUDAGraphMode
) -> None:
    got = runs(dispatcher, num_tokens, uniform, *invalid)
    kind = "uniform" if uniform else "mixed"
    without = f", without {', '.join(mode.name for mode in invalid)}" if invalid else ""
    graphs = [told(mode, key) for mode, found in dispatcher.cudagraph_keys.items() for key in found]
    there = "" if want.startswith("NONE") or want in graphs else ", of which you have no key"
    assert got == want, f"{num_tokens} tokens, {kind}{without}: {want}{there}; yours {got}: {why}"


def test_full_before_pieces(lab: ModuleType) -> None:
    """With 256 people, uniform steps run FULL, others in pieces, and those above 512 without a graph."""
    dispatcher = made(lab)
    mode, key = dispatcher.dispatch(33)
    assert mode is PIECEWISE, f"a step is mixed unless one says otherwise, yours {mode.name} {key}"
    for num_tokens, uniform, want in [
        (1, True, "FULL 1 of 1, uniform"), (3, True, "FULL 4 of 4, uniform"),
        (33, True, "FULL 40 of 40, uniform"),
        (256, True, "FULL 256 of 256, uniform"), (40, False, "PIECEWISE 40"), (41, False, "PIECEWISE 48"),
        (1, False, "PIECEWISE 1"), (257, False, "PIECEWISE 272"), (512, False, "PIECEWISE 512"),
    ]:  # fmt: skip
        step(
            dispatcher,
            num_tokens,
            uniform,
            want,
            "the lowest size that holds it, FULL if there is one",
        )


def test_above_the_top_nothing_is_replayed(lab: ModuleType) -> None:
    """A step above the largest size is not padded and has no requests in its key, whatever is forbidden."""
    dispatcher = made(lab)
    for num_tokens in (513, 3033, 8192):
        step(dispatcher, num_tokens, False, f"NONE {num_tokens}", "no size holds it")
    step(dispatcher, 513, True, "NONE 513", "above the top nobody asks", NONE)
    step(made(lab, NONE), 33, True, "NONE 33", "this mode has no graphs")
    step(made(lab, NONE), 33, True, "NONE 33", "this mode has no graphs, and asks nobody", NONE)
    step(lab.CudagraphDispatcher(BOTH, [], 8), 1, True, "NONE 1", "there is no ladder")


def test_a_full_batch_between_two_sizes(lab: ModuleType) -> None:
    """33 decodes of 33 have no FULL graph of 40: pieces run them, or no graph under FULL_DECODE_ONLY."""
    sizes = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    why = "FULL keys end at 33 requests, so at the size 32"
    step(made(lab, BOTH, sizes, 33), 32, True, "FULL 32 of 32, uniform", "32 is the last of them")
    step(made(lab, BOTH, sizes, 33), 33, True, "PIECEWISE 40", why)
    step(made(lab, DECODE_ONLY, sizes, 33), 33, True, "NONE 33", f"{why}, and there are no pieces")


def test_a_mixed_batch_has_no_full_graph(lab: ModuleType) -> None:
    """A mixed batch does not use a decode graph of the same size: a key says whether it is uniform."""
    for num_tokens in (40, 33):
        want = f"NONE {num_tokens}"
        why = "FULL graphs are for uniform batches here, and without a graph nothing is padded"
        step(made(lab, DECODE_ONLY), num_tokens, False, want, why)
    step(made(lab, BOTH), 40, False, "PIECEWISE 40", "FULL graphs are for uniform batches here")


def test_one_graph_for_all(lab: ModuleType) -> None:
    """The modes FULL and PIECEWISE treat all steps alike, so uniform steps get the same key."""
    for uniform in (False, True):
        dispatcher = made(lab, FULL, (), 64)
        step(dispatcher, 33, uniform, "FULL 40 of 40", "one graph for both kinds")
        step(dispatcher, 100, uniform, "FULL 104 of 64", "at most 64 requests")
        step(made(lab, PIECEWISE), 33, uniform, "PIECEWISE 40", "pieces do not see requests")


def test_decodes_with_drafts(lab: ModuleType) -> None:
    """With four tokens per decode, FULL graphs are padded to whole requests, and mixed steps to tokens."""
    dispatcher = made(lab, BOTH, [4, 16, 32, 64], 10, 4)
    step(dispatcher, 12, True, "FULL 16 of 4, uniform", "16 rows are 4 requests of 4")
    step(dispatcher, 32, True, "FULL 32 of 8, uniform", "32 rows are 8 requests of 4")
    step(dispatcher, 36, True, "PIECEWISE 64", "64 rows would be 16 requests, and there are 10")
    step(dispatcher, 13, False, "PIECEWISE 16", "mixed")


def test_forbidden_modes(lab: ModuleType) -> None:
    """Without FULL a step takes pieces of the same size, without both no graph; without NONE one must fit."""
    dispatcher = made(lab)
    step(dispatcher, 33, True, "PIECEWISE 40", "pieces are the next best", FULL)
    step(dispatcher, 33, True, "NONE 33", "nothing else is left", FULL, PIECEWISE)
    step(
        dispatcher, 33, False, "NONE 33", "pieces are forbidden, and FULL is not for it", PIECEWISE
    )
    step(made(lab, DECODE_ONLY), 33, True, "NONE 33", "this mode has no pieces", FULL)
    step(dispatcher, 33, True, "FULL 40 of 40, uniform", "there is one", NONE)
    forbidden = frozenset({NONE, PIECEWISE})
    said = refusal(
        lambda: dispatcher.dispatch(33, False, forbidden), "33 mixed tokens, FULL or nothing"
    )
    assert "33" in said, f"the message should name the 33 tokens: {said}"
    every = frozenset({NONE, PIECEWISE, FULL})
    for num_tokens in (33, 9000):
        refusal(
            lambda n=num_tokens: dispatcher.dispatch(n, True, every),
            "a step with no mode left to it",
        )


def test_nothing_is_made_on_the_way(lab: ModuleType) -> None:
    """A thousand steps leave the keys as they were: only the start records graphs."""
    for dispatcher in (made(lab, BOTH, (), 33), made(lab, DECODE_ONLY, (), 33)):
        before = [keys(dispatcher, mode) for mode in (PIECEWISE, FULL)]
        for num_tokens in range(1, 600):
            for uniform in (False, True):
                mode, key = dispatcher.dispatch(num_tokens, uniform)
                known = dispatcher.cudagraph_keys.get(mode, ())
                assert mode is NONE or key in known, (
                    f"{num_tokens} tokens run as {mode.name} {key}, and there is no such key: nobody "
                    "has recorded that graph"
                )
        after = [keys(dispatcher, mode) for mode in (PIECEWISE, FULL)]
        assert after == before, (
            f"there were {[len(found) for found in before]} keys of PIECEWISE and FULL, and after the "
            f"steps {[len(found) for found in after]}"
        )


def test_vllm_dispatches_the_same(lab: ModuleType) -> None:
    """Your dispatcher equals vLLM's in twenty tables of 4,096 steps, over sizes, people, drafts, modes."""
    support.tables_are_vllms(lab, 110)


# ---- in the engine -------------------------------------------------------------------------------


def test_in_the_engine(lab: ModuleType) -> None:
    """Under your dispatcher `mini_vllm` gives the tokens that it gives without graphs, and it does replay."""
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = ["Four in the morning", "Is anybody there?", "Kim"]
    plain = [out.outputs[0].token_ids for out in LLM(max_num_seqs=8).generate(prompts, params)]
    parts = EngineParts(cudagraph_dispatcher=lab.CudagraphDispatcher)
    llm = LLM(max_num_seqs=8, parts=parts, cudagraph_mode="FULL_AND_PIECEWISE")
    ran: list[str] = []
    core = llm.llm_engine.engine_core
    core.step_observers.append(
        lambda record: ran.append(record.model_runner_output.cudagraph_stats.runtime_mode)
    )
    got = [out.outputs[0].token_ids for out in llm.generate(prompts, params)]
    assert got == plain, f"graphs must not change a token: {got}, without them {plain}"
    assert ran[0] == "NONE", f"the prompts have more tokens than the ladder's 16: {ran}"
    assert ran[1:] == ["FULL"] * 5, f"then three decode, each step from one graph: {ran}"
