"""Lab 02-08: the mend refuses what would hang, and nothing else."""

from __future__ import annotations

import functools
import itertools
from types import ModuleType

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
INCIDENT = {"num_gpu_blocks": 32, "block_size": 16, "max_model_len": 512}
Case = tuple[int, int, int, int, int]  # blocks, block size, max_model_len, prompt, max_tokens


def refusal(lab: ModuleType, prompt: int, most: int, **engine: int) -> str | None:
    """What `admit` has against the request; None if it lets it in."""
    try:
        lab.admit(prompt, most, **engine)
    except ValueError as error:
        return str(error)
    return None


@functools.cache
def hangs(case: Case) -> bool:
    """Whether the request, alone in an engine that accepts everything, is still there at last."""
    blocks, size, length, prompt, most = case
    engine = support.Engine(blocks, size, length)
    engine.add_request("r", prompt, most)
    for _ in range(length + 3):
        engine.step()
    return "r" not in engine.finished


def cases() -> list[Case]:
    """Requests about the boundary, for pools and lengths about the boundary."""
    found = []
    for blocks, size in ((2, 1), (2, 5), (3, 4), (4, 3)):
        room = (blocks - 1) * size
        # beyond all blocks together no engine starts
        for length in sorted({room, room + 1, min(room + 2, room + size), room + size}):
            prompts = {1, 2, room - 1, room, room + 1}
            for prompt in sorted(p for p in prompts if 0 < p < length):
                left = room - prompt
                for most in sorted({1, left, left + 1, left + 2, 40} - {0}):
                    if most > 0:
                        found.append((blocks, size, length, prompt, most))
    return found


def test_the_most_blocks_a_request_can_hold(lab: ModuleType) -> None:
    """A request holds slots for its prompt and all outputs but the last, up to max_model_len."""
    for (prompt, most, size, length), want, why in (
        ((30, 12, 16, 512), 3, "30 + 12 tokens, of which 41 are computed"),
        (
            (30, 3, 16, 512),
            2,
            "33 tokens, but the last is sampled and never computed: 32 fill 2 blocks",
        ),
        ((30, 4, 16, 512), 3, "34 tokens, 33 of them computed: one more than 2 blocks hold"),
        ((32, 1, 16, 512), 2, "the prompt fills 2 blocks, its one output needs no slot"),
        ((470, 40, 16, 512), 32, "509 tokens computed"),
        ((470, 4000, 16, 512), 32, "max_model_len ends it at 512 tokens, 511 of them computed"),
        ((3, 50, 4, 9), 2, "max_model_len ends it at 9 tokens, 8 of them computed"),
    ):
        got = lab.blocks_at_most(prompt, most, size, length)
        assert got == want, (
            f"a prompt of {prompt} with max_tokens {most}, blocks of {size}, max_model_len {length}: "
            f"{want} blocks, yours says {got}. {why}"
        )


def test_the_requests_of_the_incident(lab: ModuleType) -> None:
    """The two requests of the incident are refused, and the other six are not."""
    for record in support.trace():
        if "arrives" not in record:
            continue
        name, prompt, most = record["arrives"].values()
        said = refusal(lab, prompt, most, **INCIDENT)
        if name in ("contract-3", "minutes-6"):
            assert said is not None, (
                f"{name}: a prompt of {prompt} with max_tokens {most} needs 32 blocks of 16 at its longest, "
                "and the trace shows no step with so many free. It waited for ever; admit lets it in"
            )
            assert ["needs 32 blocks" in said, "can give 31" in said] == [True, True], (
                f"{name} is refused with: {said}. The client wants to know what it needs and what there is: "
                "`needs N blocks` and `can give M`"
            )
        else:
            assert said is None, f"{name} ran in the incident, and admit refuses it: {said}"


def test_the_boundary_of_a_prompt(lab: ModuleType) -> None:
    """A prompt of 496 tokens fits into 31 blocks, and one of 497 does not."""
    assert refusal(lab, 496, 1, **INCIDENT) is None, (
        "a prompt of 496 tokens fills 31 blocks, and its one output is never computed: it can run"
    )
    assert refusal(lab, 497, 1, **INCIDENT) is not None, (
        "a prompt of 497 tokens needs 32 blocks to begin, and 31 can be given out: refuse it"
    )


def test_the_boundary_of_growth(lab: ModuleType) -> None:
    """One more output token decides whether a request that grows is refused."""
    assert refusal(lab, 470, 27, **INCIDENT) is None, (
        "470 tokens and 27 outputs make 497, of which 496 are computed: 31 blocks, and it ends there"
    )
    assert refusal(lab, 470, 28, **INCIDENT) is not None, (
        "470 tokens and 28 outputs: token 497 has to be computed for the last of them. That is what "
        "minutes-6 came to, with 27 outputs in hand. Look at the whole life of a request, not at its "
        "prompt alone"
    )


def test_max_model_len_stops_a_request_in_time(lab: ModuleType) -> None:
    """A max_tokens that is never reached refuses no request."""
    engine = INCIDENT | {"max_model_len": 497}
    assert refusal(lab, 470, 4000, **engine) is None, (
        "with max_model_len 497 any request ends at 497 tokens, 496 of them computed. max_tokens 4000 is "
        "never reached, so it refuses nobody"
    )
    assert refusal(lab, 470, 4000, **INCIDENT | {"max_model_len": 498}) is not None, (
        "with max_model_len 498 the same request may compute 497 tokens: 32 blocks"
    )


def test_it_refuses_exactly_what_hangs(lab: ModuleType) -> None:
    """`admit` refuses exactly the requests that hang on an engine that accepts everything."""
    for case in cases():
        blocks, size, length, prompt, most = case
        engine = {"num_gpu_blocks": blocks, "block_size": size, "max_model_len": length}
        said = refusal(lab, prompt, most, **engine)
        what = (
            f"{blocks} blocks of {size}, max_model_len {length}: prompt {prompt}, max_tokens {most}"
        )
        if hangs(case):
            assert said is not None, f"{what} was let in, and never ends when it is run"
        else:
            assert said is None, f"{what} runs to its end, and admit refuses it: {said}"


@pytest.mark.parametrize(
    "name", ["prompt_tokens", "max_tokens", "num_gpu_blocks", "block_size", "max_model_len"]
)
@pytest.mark.parametrize("value", [0, -3])
def test_values_that_nobody_has(lab: ModuleType, name: str, value: int) -> None:
    """The message about an impossible value has its name and the value."""
    values = {"prompt_tokens": 20, "max_tokens": 4, **INCIDENT, name: value}
    try:
        lab.admit(values.pop("prompt_tokens"), values.pop("max_tokens"), **values)
    except ValueError as error:
        said = str(error)
    else:
        pytest.fail(f"{name} is {value}, which is no request and no engine, and admit lets it pass")
    assert [name in said, str(value) in said] == [True, True], (
        f"{name} is {value}; the error says “{said}”. It must hold the name and the value"
    )


def test_a_prompt_without_room_for_an_output(lab: ModuleType) -> None:
    """A prompt that leaves no room for an output token is refused, as in vLLM's front end."""
    roomy = {"num_gpu_blocks": 100, "block_size": 16, "max_model_len": 512}
    assert refusal(lab, 511, 1, **roomy) is None, "a prompt of 511 of 512 leaves room for one token"
    for prompt, engine in itertools.product((512, 513), (roomy, INCIDENT)):
        said = refusal(lab, prompt, 1, **engine)
        assert [text in (said or "") for text in (str(prompt), "512")] == [True, True], (
            f"a prompt of {prompt} with max_model_len 512 leaves no room for an output. Refuse it, and name "
            f"both numbers, before you look at the {engine['num_gpu_blocks']} blocks; yours says: {said}"
        )


def test_the_length_that_fits(lab: ModuleType) -> None:
    """The start chooses the largest max_model_len under which no request hangs."""
    for blocks, size, longest in (
        (32, 16, 1024),
        (2, 1, 99),
        (9, 4, 99),
        (3, 7, 15),
        (3, 7, 14),
        (9, 4, 20),
    ):
        length = lab.fit_max_model_len(blocks, size, longest)
        engine = {"num_gpu_blocks": blocks, "block_size": size}
        what = f"{blocks} blocks of {size}, the model's limit {longest}: you chose {length}"
        assert 2 <= length <= longest, f"{what}, which is not from 2 to {longest}"

        def needs(limit: int, size: int = size) -> int:
            return max(-(-(min(p + 9999, limit) - 1) // size) for p in (1, limit - 1))

        assert needs(length) <= blocks - 1, (
            f"{what}. A request of {length} tokens computes {length - 1} of them, which needs "
            f"{needs(length)} blocks; {blocks - 1} can be given out"
        )
        more = length + 1
        assert more > longest or needs(more) > blocks - 1, (
            f"{what}. {more} would fit too: it computes {more - 1} tokens, and {blocks - 1} blocks hold "
            f"{(blocks - 1) * size}. The last token of a request is never computed"
        )
        for prompt, most in itertools.product((1, length - 1), (1, 5000)):
            said = refusal(lab, prompt, most, max_model_len=length, **engine)
            assert said is None, f"{what}, and then your admit refuses a prompt of {prompt}: {said}"


def test_a_pool_for_nobody(lab: ModuleType) -> None:
    """A pool that can give out nothing fits no length."""
    assert lab.fit_max_model_len(2, 1, 99) == 2, "2 blocks of 1 token: one of prompt, one of output"
    for blocks in (1, 0):
        with pytest.raises(ValueError, match=rf"num_gpu_blocks\D+.*\b{blocks}\b"):
            lab.fit_max_model_len(blocks, 16, 1024)
