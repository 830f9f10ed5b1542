"""`course.fuzz` finds what is planted, finds nothing where nothing is, and shrinks what it finds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from course.fuzz.causes import EQUAL, TWICE, UNKNOWN, cause_of, goes_wrong
from course.fuzz.causes import WITHDRAWN as PLANTED
from course.fuzz.command import RESULTS, main
from course.fuzz.draw import GENERATORS, named, worlds
from course.fuzz.drive import NoProgress, WrongPlan, WrongSlot, WrongTokens, play
from course.fuzz.engine import Engine, Leak
from course.fuzz.engines import Mini, engine_of, release
from course.fuzz.hunt import SCHEDULERS, hunt, kind_of
from course.fuzz.known import BYSTANDER, DEADLY, DOUBLED, EQUALS, KNOWN, WITHDRAWN
from course.fuzz.memory import Entry, Memory, Plan, Wrong
from course.fuzz.shrink import shrink, size
from course.fuzz.world import EOS, Job, Settings, World, answer, prefixes, world_of
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler
from tests.engine.helpers.engine.faults import FAULTS
from tests.engine.helpers.thorough import either

POLICIES = ("fcfs", "priority")


def upstream(world: World) -> Engine:
    return Mini(world, UpstreamScheduler)


def mine(world: World) -> Engine:
    return engine_of("mini_vllm", world)


# -- nothing where nothing is ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_right_scheduler_passes(policy: str) -> None:
    found = hunt("mini_vllm", "Scheduler", policy, 800)
    assert found["findings"] == []
    assert found["steps"] >= 800
    assert found["preemptions"] > 20, "nobody was preempted: the pools are too large"


def test_the_worlds_hold_what_goes_wrong() -> None:
    drawn = [w for _, w in zip(range(400), worlds(0, ("sync", "async"), "priority"), strict=False)]
    jobs = [job for world in drawn for job in world.jobs]
    assert all(world.fair for world in drawn)
    assert {world.settings.block_size for world in drawn} == {1, 2, 3, 4, 8}
    assert {world.settings.scheduler_reserve_full_isl for world in drawn} == {True, False}
    assert {world.settings.enable_prefix_caching for world in drawn} == {True, False}
    assert {world.settings.enable_chunked_prefill for world in drawn} == {True, False}
    assert {job.salt for job in jobs} == {0, 1, 2}
    assert {job.n for job in jobs} == {1, 2, 3}
    assert {running for world in drawn for _, running in world.resets} == {True, False}
    assert sum(job.abort is not None and job.late for job in jobs) > 30
    assert sum(bool(job.stop) for job in jobs) > 30
    lengths = [
        len(j.prompt) + len(answer(j, w.settings, w.vocabulary)) for w in drawn for j in w.jobs
    ]
    limits = [world.settings.max_model_len for world in drawn for _ in world.jobs]
    assert sum(map(int.__eq__, lengths, limits)) > 10, "max_model_len is hardly ever reached"


# -- what is planted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "error", "cause"),
    [
        (WITHDRAWN, WrongSlot, PLANTED),
        (BYSTANDER, WrongSlot, PLANTED),
        (EQUALS, NoProgress, EQUAL),
    ],
)
def test_it_sees_what_the_pin_does_and_knows_why(
    world: World, error: type[Wrong], cause: str
) -> None:
    assert isinstance(goes_wrong(world, upstream), error)
    assert goes_wrong(world, mine) is None
    assert cause_of(world, upstream) == cause


def test_a_hunt_finds_both_faults_of_the_pin() -> None:
    found = hunt("mini_vllm", "Scheduler", "priority", either(400, 1200), make=upstream)
    assert {f["cause"] for f in found["findings"]} == {PLANTED, EQUAL}
    for finding in found["findings"]:
        smallest = world_of(json.loads(json.dumps(finding["shrunk"])))
        assert len(smallest.jobs) <= 2
        assert goes_wrong(smallest, upstream) is not None
        assert goes_wrong(smallest, mine) is None
        assert goes_wrong(named(finding["first"][0]), upstream) is not None


@pytest.mark.parametrize(
    "name",
    [
        "hash_without_the_parent",
        "hash_without_the_salt",
        "prefix_hit_one_block_too_long",
        "shared_tail_block",
        "published_before_it_is_full",
    ],
)
def test_it_finds_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = FAULTS[name](monkeypatch)

    def faulty(world: World) -> Engine:
        def manager(*args: Any) -> Any:
            return parts.kv_cache_manager(*args, parts.block_pool(args[0], args[3]))

        return Mini(world, parts.scheduler, manager)

    kinds = set()
    for _, world in zip(range(160), worlds(0, ("sync",), "fcfs"), strict=False):
        error = goes_wrong(world, faulty)
        if error is not None:
            kinds.add(type(error))
            if WrongSlot in kinds:
                break
    assert WrongSlot in kinds, f"{name} goes unseen"


class KeepsABlock(KVCacheManager):
    """Forgets to give the first block back, once."""

    def free(self, request: Any) -> None:
        if request.request_id == "0_0" and request.is_finished():
            self.block_pool.touch(self.req_to_blocks[request.request_id][:1])
        super().free(request)


class Repeats(Scheduler):
    """Passes every token on twice."""

    def update_from_output(self, output: Any, result: Any) -> Any:
        news = super().update_from_output(output, result)
        for one in news:
            one.new_token_ids = one.new_token_ids * 2
        return news


class Sleeps(Scheduler):
    """Admits nobody any more after its fifth step."""

    calls = 0

    def schedule(self) -> Any:
        self.calls += 1
        if self.calls > 5:
            self.max_num_running_reqs = 0
            self.running, kept = [], self.running
            output = super().schedule()
            self.running = kept
            return output
        return super().schedule()


PLAIN = World(Settings(num_blocks=20), (Job((5, 6, 7), 8), Job((8, 9), 8, arrive=1)))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda world: Mini(world, manager_class=KeepsABlock), Leak),
        (lambda world: Mini(world, Repeats), WrongTokens),
        (lambda world: Mini(world, Sleeps), NoProgress),
    ],
    ids=["a block is kept", "tokens twice", "nobody is admitted"],
)
def test_it_finds_what_no_read_shows(make: Any, error: type[Wrong]) -> None:
    assert goes_wrong(PLAIN, mine) is None
    found = goes_wrong(PLAIN, make)
    assert type(found) is error, found
    assert cause_of(PLAIN, make) == UNKNOWN


# -- the memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block_ids", "start", "count", "error", "message"),
    [
        ([1, 2], 2, 1, WrongSlot, "r reads position 0 in block 1 (hit): it was never written"),
        ([1, 1], 0, 3, WrongPlan, "a block twice"),
        ([1, 0], 0, 3, WrongPlan, "the null block"),
        ([1], 0, 3, WrongPlan, "no slot for position 2"),
        ([1, 2], 0, 4, WrongPlan, "token 3 is to be computed and is not known"),
    ],
)
def test_the_memory_knows_what_it_holds(
    block_ids: list[int], start: int, count: int, error: type[Wrong], message: str
) -> None:
    memory = Memory(num_blocks=4, block_size=2, max_model_len=8, vocabulary=3)
    memory.salts["r"] = 0
    plan = Plan([Entry("r", [5, 6, 7], block_ids, True, start, count)], set(), set())
    with pytest.raises(error) as caught:
        memory.execute(plan)
    assert message in str(caught.value)


def test_a_resumed_request_knows_what_it_was_told_and_no_more() -> None:
    """Its own token, which the scheduler threw away in a reset, is sampled again."""
    memory = Memory(num_blocks=4, block_size=2, max_model_len=8, vocabulary=3)
    memory.salts["r"] = 0
    (first,) = memory.execute(Plan([Entry("r", [5, 6], [1], True, 0, 2)], set(), set()))
    (again,) = memory.execute(Plan([Entry("r", [5, 6], [2], True, 0, 2)], set(), {"r"}))
    assert again == first != []


def test_prefixes_tell_token_position_and_salt() -> None:
    assert len({*prefixes([5, 5, 6], 0), *prefixes([5, 5, 6], 1), *prefixes([6, 5, 5], 0)}) == 9
    assert list(prefixes([5, 6, 7], 0))[:2] == list(prefixes([5, 6], 0))


def test_an_answer_ends_where_it_should() -> None:
    settings = Settings(max_model_len=48)
    long = answer(Job((5, 6), 40), settings, 3)
    assert len(long) == 40
    assert EOS in long, "choose another prompt: this test needs EOS in the answer"
    ended = answer(Job((5, 6), 40, ignore_eos=False), settings, 3)
    assert ended == long[: long.index(EOS) + 1]
    assert len(answer(Job((5, 6), 99), settings, 3)) == 46
    assert answer(Job((5, 6), 40, stop=(long[0],)), settings, 3) == long[:1]


# -- shrinking, names, the command ----------------------------------------------------------------


def test_shrinking_leaves_the_least() -> None:
    world = next(w for w in worlds(3, ("sync",), "fcfs") if len(w.jobs) >= 4)
    smallest = shrink(world, lambda w: sum(len(j.prompt) for j in w.jobs) >= 3)
    assert sum(len(job.prompt) for job in smallest.jobs) == 3
    assert size(smallest) < size(world)
    assert smallest.fair
    assert all(job.max_tokens == 1 and job.arrive == 0 and job.n == 1 for job in smallest.jobs)
    assert not smallest.resets


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_world_is_found_again_by_its_name_and_in_json(kind: str) -> None:
    world = named(f"{kind} 12 sync priority")
    assert world == GENERATORS[kind](12, "sync", "priority")
    assert world_of(json.loads(json.dumps(world.as_data()))) == world


@pytest.mark.parametrize("name", ["", "any", "any x sync fcfs", "nothing 3 sync fcfs"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a world"):
        named(name)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    out = tmp_path / "found.json"
    assert main(["run", "--engine", "mini_vllm", "--steps", "200", "--out", str(out)]) == 0
    policies = [run["policy"] for run in json.loads(out.read_text())["runs"]]
    assert policies == 2 * list(POLICIES), "for each scheduler, sync and async"
    assert main(["show", "withdrawn 15 sync priority", "--engine", "mini_vllm"]) == 0
    assert "ends well" in capsys.readouterr().out
    assert main(["show", "nobody", "--engine", "mini_vllm"]) == 2
    assert "'nobody' is no name of a world" in capsys.readouterr().err


def test_the_miniature_does_nothing_else_on_what_vllm_was_found_with() -> None:
    """Every shrunk world in `course/fuzz/results` that one batch at a time can play ends well here."""
    assert main(["again", "--engine", "mini_vllm"]) == 0


# -- vLLM itself ----------------------------------------------------------------------------------


@pytest.mark.vllm
@pytest.mark.parametrize("world", KNOWN, ids=lambda world: f"{world.name}-{world.mode}")
def test_vllm_goes_wrong_where_it_is_known_to(world: World) -> None:
    def vllm(which: World) -> Engine:
        return engine_of("vllm", which)

    causes = {"equals": EQUAL, "doubled": TWICE, "deadly": TWICE}
    assert goes_wrong(world, vllm) is not None
    assert cause_of(world, vllm) == causes.get(world.name, PLANTED)


@pytest.mark.vllm
def test_a_second_reset_doubles_a_token_or_ends_the_engine() -> None:
    """`DOUBLED`'s second token comes twice; with two plans in flight both worlds end well."""

    def vllm(which: World) -> Engine:
        return engine_of("vllm", which)

    assert str(goes_wrong(DOUBLED, vllm)).startswith("0_0 gave [2, 3, 3, 5")
    assert "AssertionError" in str(goes_wrong(DEADLY, vllm))
    for world in (DOUBLED, DEADLY):
        assert goes_wrong(replace(world, in_flight=2), vllm) is None


@pytest.mark.vllm
@pytest.mark.parametrize("scheduler", ["Scheduler", "AsyncScheduler"])
def test_vllm_under_fcfs_and_under_priority(scheduler: str) -> None:
    assert hunt("vllm", scheduler, "fcfs", 1000)["findings"] == []
    found = hunt("vllm", scheduler, "priority", 600)["findings"]
    assert UNKNOWN not in {finding["cause"] for finding in found}


@pytest.mark.vllm
def test_the_committed_findings_are_found_again() -> None:
    """On the release that they are of: the shrunk world, and the first that it was shrunk from."""

    def vllm(which: World) -> Engine:
        return engine_of("vllm", which)

    result = json.loads((RESULTS / f"vllm-{release('vllm')}.json").read_text())
    findings = [finding for run in result["runs"] for finding in run["findings"]]
    assert {finding["cause"] for finding in findings} == {PLANTED, EQUAL}
    for finding in findings:
        for world in (world_of(finding["shrunk"]), named(finding["first"][0])):
            error = goes_wrong(world, vllm)
            assert error is not None, finding["first"][0]
            assert kind_of(error) == finding["kind"]
            assert cause_of(world, vllm) == finding["cause"]


def test_the_committed_results_are_as_long_as_they_say() -> None:
    """200,000 steps a scheduler and policy, at the pin and on a later release."""
    for name in ("0.22.1", "0.32.0"):
        runs = json.loads((RESULTS / f"vllm-{name}.json").read_text())["runs"]
        assert [(run["scheduler"], run["policy"]) for run in runs] == [
            (scheduler, policy) for scheduler in SCHEDULERS for policy in POLICIES
        ]
        assert min(run["steps"] for run in runs) >= 200_000
        assert [bool(run["findings"]) for run in runs] == [False, True, False, True]


def test_a_control_with_a_fault_that_upstream_knows() -> None:
    """vLLM 0.20.0 drops a token too many after a reset in flight (its issue 42043); later ones do not."""
    (run,) = json.loads((RESULTS / "control-0.20.0.json").read_text())["runs"]
    smallest = [world_of(finding["shrunk"]) for finding in run["findings"]]
    assert len(smallest) == 4
    assert all(any(running for _, running in world.resets) for world in smallest)
    assert "WrongTokens" in {finding["kind"] for finding in run["findings"]}


@pytest.mark.vllm
def test_one_engine_plays_a_world_as_the_other_does() -> None:
    """Steps, preemptions and the tokens given, in worlds where neither goes wrong."""
    for name in ("any 5 sync fcfs", "in flight 7 sync fcfs", "withdrawn 5 sync fcfs"):
        world = replace(named(name), resets=())
        ours, theirs = (play(world, lambda w, e=e: engine_of(e, w)) for e in ("mini_vllm", "vllm"))
        assert (ours.steps, ours.preemptions) == (theirs.steps, theirs.preemptions), name
        assert ours.given == theirs.given, name
