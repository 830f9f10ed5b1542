"""Lab 09-05: the rule, the phrase, rows that come, leave and move, random schedules, and the engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.sample.logits_processor import BatchUpdate, MoveDirectionality
from mini_vllm.sampling_params import SamplingParams

support = load_support(__file__)
ONE_WAY, SWAP = MoveDirectionality.UNIDIRECTIONAL, MoveDirectionality.SWAP


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions of rows, forgotten requests and said tokens hold."""
    facts = {
        "rows": (
            ["Eve", "Noor", "Gil", "Ada"],
            "Write the five names down, and change them as the update says, one entry at a time.",
        ),
        "forgotten": (["Bo", "Cy"], "Who is in no row at the end?"),
        "said": (
            [5, 5, 9, 5, 5, 9],
            "A token of the phrase is no trigger. When does the model choose again, and what?",
        ),
        "back": ((3, 8), "What did she say before she was preempted, and how much of the phrase was that?"),
        "greedy": (["Noor"], "Which of the two has chosen her token before yours is asked?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"five questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, question) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {question}"


# ---- what a request asks for ---------------------------------------------------------------------


def test_a_rule_is_read_from_the_parameters(lab: ModuleType) -> None:
    """A rule read from the parameters is a trigger and a phrase, or None."""
    got = lab.parse_rule(support.ask(3, [4, 0]))
    assert got is not None, "after 3 say [4, 0] is a rule, and you find none"
    assert tuple(got) == (3, [4, 0]), f"after 3 say [4, 0]: (3, [4, 0]), not {got}"
    assert tuple(lab.parse_rule(support.ask(0, [0]))) == (0, [0]), "token 0 is a token like others"
    for extra in (None, {}, {"nothing_twice": True}):
        got = lab.parse_rule(SamplingParams(extra_args=extra))
        assert got is None, f"extra_args {extra} ask for nothing of yours: None, not {got}"


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"after": 3}, "say"),
        ({"say": [4]}, "after"),
        ({"after": "3", "say": [4]}, "after"),
        ({"after": -1, "say": [4]}, "after"),
        ({"after": 3, "say": []}, "say"),
        ({"after": 3, "say": 4}, "say"),
        ({"after": 3, "say": [4, None]}, "say"),
        ({"after": 3, "say": [True]}, "say"),
    ],
)
def test_a_bad_rule_is_refused_at_the_door(
    lab: ModuleType, extra: dict[str, Any], named: str
) -> None:
    """`validate_params` names the field, and the request never reaches the batch."""
    said = None
    try:
        lab.SayAfter.validate_params(SamplingParams(extra_args=extra))
    except ValueError as error:
        said = str(error)
    assert said is not None, f"{extra} is let through, and the whole batch would fail on it"
    assert named in said, f"{extra}: the message names {named!r}; yours: {said}"


def test_good_rules_are_let_through(lab: ModuleType) -> None:
    """`validate_params` accepts a good rule, and a request without one."""
    for params in (support.ask(3, [4, 0]), support.ask(), SamplingParams(extra_args={"other": 1})):
        try:
            lab.SayAfter.validate_params(params)
        except ValueError as error:
            pytest.fail(f"extra_args {params.extra_args} is refused: {error}")


# ---- one request ---------------------------------------------------------------------------------


def follow(lab: ModuleType, after: int, say: list[int], favourites: list[int]) -> list[int]:
    """What a request in row 0 says, if these are the model's favourites, one per step."""
    processor, batch = support.make(lab), support.Batch()
    eve = support.Person("Eve", support.ask(after, say))
    processor.update_state(batch.change(come=[eve]))
    for favourite in favourites:
        (token,) = support.forced(processor, 1)
        eve.output_ids.append(favourite if token is None else token)
        processor.update_state(None)
    return eve.output_ids


def test_a_forced_row_has_one_token(lab: ModuleType) -> None:
    """A forced row has 0 for its token and -inf for the others, whatever it held before."""
    processor, batch = support.make(lab), support.Batch()
    processor.update_state(
        batch.change(come=[support.Person("Eve", support.ask(3, [7]), output_ids=[3])])
    )
    logits = np.full((1, support.VOCABULARY), 2.0, np.float32)
    logits[0, 7] = -np.inf  # another stage has barred it
    got = processor.apply(logits)
    assert got is not None, "`apply` returns the logits to go on with, and yours returns None"
    assert support.describe(got[0], np.zeros(support.VOCABULARY)) == 7, (
        f"token 7 gets the logit 0, all others -inf; yours: {got[0].tolist()}"
    )


@pytest.mark.parametrize(
    ("after", "say", "favourites", "want"),
    [
        (3, [7, 8], [1, 3, 1, 1, 1], [1, 3, 7, 8, 1]),
        (3, [7], [3, 3, 3, 1], [3, 7, 3, 7]),
        (3, [3, 9], [3, 1, 1, 1, 1], [3, 3, 9, 1, 1]),
        (3, [9, 3], [3, 1, 1, 1, 1], [3, 9, 3, 1, 1]),
        (0, [0, 0], [0, 1, 1, 1], [0, 0, 0, 1]),
    ],
)
def test_after_its_trigger_a_request_says_its_phrase(
    lab: ModuleType, after: int, say: list[int], favourites: list[int], want: list[int]
) -> None:
    """A request says its phrase after each trigger, but a trigger inside the phrase starts nothing."""
    got = follow(lab, after, say, favourites)
    assert got == want, (
        f"after {after} say {say}; the model would say {favourites}: {want}, not {got}"
    )


def test_prompts_hold_no_triggers(lab: ModuleType) -> None:
    """A trigger counts only in what the request has said, not in its prompt."""
    processor = support.make(lab)
    processor.update_state(BatchUpdate(1, [], [(0, support.ask(3, [7]), [1, 3], [])], []))
    got = support.forced(processor, 1)
    assert got == [None], f"the prompt ends with the trigger, and nothing is said yet: {got}"


# ---- rows ----------------------------------------------------------------------------------------


def stand(lab: ModuleType, *names: str) -> tuple[Any, Any]:
    """A processor and its batch. Who has a small name asks for nothing. The others have said their trigger.

    Ada's phrase is [4, 4], Bo's [5, 5], Cy's [6, 6], Eve's [7, 7].
    """
    processor, batch = support.make(lab), support.Batch()
    processor.update_state(batch.change(come=[person(name) for name in names]))
    return processor, batch


def person(name: str) -> Any:
    """A request of `stand`."""
    phrases = {"Ada": 4, "Bo": 5, "Cy": 6, "Eve": 7}
    params = support.ask(3, [phrases[name]] * 2) if name in phrases else support.ask()
    return support.Person(name, params, output_ids=[3])


def expect(processor: Any, batch: Any, want: list[int | None], what: str) -> None:
    """Fails where other rows are forced, or other tokens."""
    try:
        got = support.forced(processor, len(batch.rows))
    except IndexError as error:
        pytest.fail(f"{what}: {error}. The rows are {batch.names()}")
    assert got == want, (
        f"{what}: rows {batch.names()} (small: no rule) are forced to {want}, not {got}"
    )


def test_rows_of_others_are_left_alone(lab: ModuleType) -> None:
    """Of four rows, two are forced, and the two without a phrase stay as they are."""
    processor, batch = stand(lab, "gil", "Ada", "noor", "Bo")
    expect(processor, batch, [None, 4, None, 5], "Ada and Bo have said their trigger")


def test_nothing_new(lab: ModuleType) -> None:
    """The update None means the same requests in the same rows."""
    processor, batch = stand(lab, "Ada", "Bo")
    processor.update_state(None)
    expect(processor, batch, [4, 5], "update_state(None)")


def test_who_leaves_is_forgotten(lab: ModuleType) -> None:
    """A request that leaves is forgotten, whether its row is gone or stays empty at the end."""
    processor, batch = stand(lab, "Ada", "Bo", "Cy")
    update = batch.change(leave=["Cy", "Bo"])
    processor.update_state(update)
    expect(processor, batch, [4], f"removed: {list(update.removed)}")
    processor.update_state(batch.change(come=[person("gil")]))
    expect(
        processor, batch, [4, None], "gil, who asks for nothing, comes into the row that Bo left"
    )


def test_who_comes_into_a_row_replaces_its_owner(lab: ModuleType) -> None:
    """A request that is added to a row replaces its owner, although `removed` does not name the row."""
    processor, batch = stand(lab, "Ada", "Bo", "Cy")
    update = batch.change(leave=["Ada", "Cy"], come=[person("gil"), person("Eve")])
    assert not update.removed, "a row that is taken again is not called removed"
    processor.update_state(update)
    expect(processor, batch, [None, 5, 7], "gil takes Ada's row and Eve takes Cy's, in one update")


def test_who_fills_a_gap_takes_everything_along(lab: ModuleType) -> None:
    """A request moved one way takes its state along, and the row that it came from is empty."""
    processor, batch = stand(lab, "Ada", "gil", "Cy")
    update = batch.change(leave=["Ada"])
    processor.update_state(update)
    expect(processor, batch, [6, None], f"Cy goes from row 2 to row 0: {update.moved}")
    processor.update_state(batch.change(come=[person("noor")]))
    expect(processor, batch, [6, None, None], "noor comes into the row that Cy has left")


def test_who_asks_for_nothing_fills_a_gap(lab: ModuleType) -> None:
    """A request without a rule that moves into a gap does not inherit the last owner's phrase."""
    processor, batch = stand(lab, "Ada", "Bo", "gil")
    update = batch.change(leave=["Ada"])
    processor.update_state(update)
    expect(processor, batch, [None, 5], f"gil goes from row 2 to row 0: {update.moved}")


def test_two_change_places(lab: ModuleType) -> None:
    """Two requests change places: both with a phrase, then only one of them, both ways round."""
    processor, batch = stand(lab, "Ada", "Bo", "gil")
    processor.update_state(batch.change(swap=[("Ada", "Bo")]))
    expect(processor, batch, [5, 4, None], "Ada and Bo change places")
    processor.update_state(batch.change(swap=[("Bo", "gil")]))
    expect(processor, batch, [None, 4, 5], "Bo and gil change places")
    processor.update_state(batch.change(swap=[("gil", "Ada")]))
    expect(processor, batch, [4, None, 5], "gil and Ada change places")


def test_moves_come_after_those_who_come(lab: ModuleType) -> None:
    """A request can be added and moved in the same update."""
    processor, batch = stand(lab, "Ada", "Bo")
    update = batch.change(come=[person("Eve")], swap=[("Eve", "Ada")])
    processor.update_state(update)
    expect(processor, batch, [7, 5, 4], f"Eve comes into row 2, then {update.moved}")


def test_moves_are_made_one_after_the_other(lab: ModuleType) -> None:
    """A second move starts from where the first has ended."""
    processor, batch = stand(lab, "Ada", "Bo", "Cy")
    update = batch.change(swap=[("Ada", "Bo"), ("Ada", "Cy")])
    processor.update_state(update)
    expect(
        processor, batch, [5, 6, 4], f"Ada goes to row 1 and from there to row 2: {update.moved}"
    )


def test_an_update_may_say_everything_at_once(lab: ModuleType) -> None:
    """The README's update, here with phrases, puts every request into the right row."""
    processor, _ = stand(lab, "Ada", "Bo", "Cy", "Eve", "gil")
    noor = support.ask(3, [8, 8])
    update = BatchUpdate(4, [], [(1, noor, [1], [3])], [(4, 2, ONE_WAY), (0, 3, SWAP)])
    processor.update_state(update)
    got = support.forced(processor, 4)
    assert got == [7, 8, None, 4], (
        f"Eve, Noor (who says [8, 8]), gil and Ada: [7, 8, None, 4], not {got}"
    )


# ---- what is kept --------------------------------------------------------------------------------


def test_requests_may_share_their_parameters(lab: ModuleType) -> None:
    """Two requests may share one parameters object, each with its own place in the phrase."""
    processor, batch = support.make(lab), support.Batch()
    shared = support.ask(3, [4, 5])
    ada, bo = support.Person("Ada", shared), support.Person("Bo", shared)
    processor.update_state(batch.change(come=[ada, bo]))
    ada.output_ids.append(3)
    bo.output_ids.append(1)
    expect(processor, batch, [4, None], "Ada alone has said the trigger")
    ada.output_ids.append(4)
    bo.output_ids.append(3)
    expect(processor, batch, [5, 4], "Ada is at the phrase's second token, Bo at its first")
    assert shared.extra_args == {"after": 3, "say": [4, 5]}, (
        f"the parameters belong to the user, and stay as they are: {shared.extra_args}"
    )


def test_who_comes_back_goes_on(lab: ModuleType) -> None:
    """A preempted request comes back with all that it has said, and goes on from there."""
    processor, batch = stand(lab, "Ada", "Bo")
    expect(processor, batch, [4, 5], "both have said their trigger")
    processor.update_state(batch.change(leave=["Ada"]))
    back = person("Ada")
    back.output_ids.append(4)
    processor.update_state(batch.change(come=[back]))
    expect(processor, batch, [5, 4], "Ada comes back, having said 3 and the first 4 of [4, 4]")
    back.output_ids.append(4)
    expect(processor, batch, [5, None], "now Ada has said all of [4, 4]")


def test_a_call_is_no_token(lab: ModuleType) -> None:
    """A call of `apply` is not a token: in chunks of a prompt the row says nothing."""
    processor, batch = support.make(lab), support.Batch()
    ada = support.Person("Ada", support.ask(3, [4, 5]), output_ids=[3])
    processor.update_state(batch.change(come=[ada]))
    for _ in range(3):
        expect(
            processor, batch, [4], "Ada has said 3 and nothing since, however often you are called"
        )
    ada.output_ids.append(4)
    expect(processor, batch, [5], "Ada has said 3 and 4")


def test_the_newest_token_may_come_late(lab: ModuleType) -> None:
    """Under asynchronous scheduling the newest token is -1 in `update_state`, and known in `apply`."""
    processor, batch = support.make(lab), support.Batch()
    ada = support.Person("Ada", support.ask(3, [4, 5]))
    processor.update_state(batch.change(come=[ada]))
    expect(processor, batch, [None], "Ada has said nothing")
    for token, want, comes in ((3, 4, ""), (4, 5, "gil"), (5, None, ""), (3, 4, "noor")):
        ada.output_ids.append(-1)
        processor.update_state(batch.change(come=[person(comes)]) if comes else None)
        ada.output_ids[-1] = token
        what = f"the -1 in the list has become {token} since `update_state`"
        expect(processor, batch, [want] + [None] * (len(batch.rows) - 1), what)


def test_the_argmax_changes(lab: ModuleType) -> None:
    """`is_argmax_invariant` says truly whether the processor can change the argmax."""
    got = support.make(lab).is_argmax_invariant()
    assert got is False, f"a forced token is hardly ever the model's likeliest: False, not {got}"


def test_what_true_would_mean(lab: ModuleType) -> None:
    """An engine that believes a True answers the README's last question."""
    calls = []
    rule: dict[str, Any] = {"extra_args": {"after": 3, "say": [7]}, "logit_bias": {3: 100.0}}

    class Claims(lab.SayAfter):  # type: ignore[name-defined, misc]
        def is_argmax_invariant(self) -> bool:
            return True

        def apply(self, logits: Any) -> Any:
            calls.append(len(logits))
            return super().apply(logits)

    llm = support.make_llm("mini_vllm", Claims, 64)
    asked = [support.Asked([1, 20, 30], 10, None)]
    support.answers(llm, asked)
    assert not calls, (
        f"a greedy batch does not ask such a processor, and asked it {len(calls)} times"
    )
    params = [SamplingParams(temperature=t, max_tokens=4, **rule) for t in (0.0, 1.0)]
    eve, noor = llm.generate([[1, 20, 30]] * 2, params, use_tqdm=False)
    said = [list(one.outputs[0].token_ids) for one in (eve, noor)]
    assert said == [[3, 3, 3, 3], [3, 7, 3, 7]], (
        "both would say 3 in each step, and their rule is to say 7 after each 3. Greedy Eve chooses before "
        f"the rule is asked, Noor after it: [3, 3, 3, 3] and [3, 7, 3, 7], not {said}"
    )


# ---- everything ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_random_schedules(lab: ModuleType, ahead: bool) -> None:
    """In random schedules each request says what its own V0 processor would make it say."""
    for seed in range(25):
        try:
            found = support.play(lab, seed, ahead)
        except (IndexError, KeyError) as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
        assert found is None, (
            f"seed {seed}, step {found.step}, row {found.row}: {found.name} has said {found.output_ids}. Its "
            f"own V0 processor forces {found.expected}, yours {found.got} (None: nothing). {found.name}: "
            f"{found.history}"
        )


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_in_the_engine(lab: ModuleType, ahead: bool) -> None:
    """Twelve requests in a small pool get the tokens that each gets alone, from its V0 processor."""
    asked, expected = requests()
    llm = support.make_llm("mini_vllm", lab.SayAfter, support.SMALL_POOL, async_scheduling=ahead)
    preempted = support.count_preemptions(llm)
    got = support.answers(llm, asked)
    assert preempted, "nobody was preempted: the pool is too big for this test"
    wrong = [i for i, (mine, right) in enumerate(zip(got, expected, strict=True)) if mine != right]
    assert not wrong, (
        f"requests {wrong} of 12 say something else in the engine than alone. Request {wrong[0]} asks for "
        f"{asked[wrong[0]].extra_args}: {expected[wrong[0]]}, not {got[wrong[0]]}"
    )


_requests: list[Any] = []


def requests() -> Any:
    """The engine's requests and their answers, made once."""
    if not _requests:
        asked = support.make_requests(12)
        _requests.extend([asked, support.expected_answers(asked)])
    return _requests
