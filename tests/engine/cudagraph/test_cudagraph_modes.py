"""`mini_vllm.cudagraph`'s ladder, modes and dispatcher, held against vLLM's own, and what they refuse."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mini_vllm.cudagraph import (
    AttentionCGSupport,
    BatchDescriptor,
    CudagraphDispatcher,
    CUDAGraphMode,
    adjust_cudagraph_sizes_for_spec_decode,
    cudagraph_capture_sizes,
    is_uniform_decode,
    resolve_cudagraph_mode,
)
from tests.engine.helpers.cudagraph_grid import (
    CELLS,
    COMMAND,
    count,
    differences,
    load,
    questions,
)
from tests.engine.helpers.real_vllm.vllm_helpers import output_of
from tests.engine.helpers.thorough import either

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """The grid lowers thousands of modes, each with a warning."""
    logging.getLogger("mini_vllm.cudagraph.modes").setLevel(logging.ERROR)
    yield
    logging.getLogger("mini_vllm.cudagraph.modes").setLevel(logging.NOTSET)


def test_every_recorded_answer_is_mini_vllms() -> None:
    """Ladders, modes and tables as vLLM gave them; of the tables every 97th, or 7th with CI's patience."""
    made, theirs = load()
    assert made["command"] == COMMAND
    assert made["versions"]["vllm"] == "0.22.1"
    asked = questions()
    assert count(asked) == 9_026_080
    assert {kind: len(some) for kind, some in theirs.items()} == {
        "ladders": 11_280, "resolves": 3_600, "tables": 2_200,
    }  # fmt: skip
    steps = {"ladders": either(13, 1), "resolves": either(13, 1), "tables": either(97, 7)}
    asked = {kind: some[:: steps[kind]] for kind, some in asked.items()}
    theirs = {kind: some[:: steps[kind]] for kind, some in theirs.items()}
    assert count(asked) >= 20 * CELLS
    found = differences(asked, theirs)
    assert not found, f"{len(found)} answers differ:\n" + "\n".join(found[:3])


def test_few_of_the_questions_are_errors() -> None:
    """A grid of refusals would compare nothing; and each kind has some."""
    _, theirs = load()
    errors = {kind: some.count("error") for kind, some in theirs.items()}
    assert errors == {"ladders": 307, "resolves": 264, "tables": 0}


@pytest.mark.vllm
def test_vllm_gives_the_recorded_answers() -> None:
    """vLLM's own code asked again, in a process of its own: the record, and `mini_vllm`, say the same.
    Every 25th or 5th question; `python -m tests.engine.helpers.cudagraph_grid` asks them all."""
    steps = str(either(25, 5))
    out = output_of(
        "-m",
        "tests.engine.helpers.cudagraph_grid",
        "--every",
        steps,
        VLLM_LOGGING_LEVEL="ERROR",
    )
    assert "0 answers differ from mini_vllm's, 0 from the record" in out, out
    print(out)


def test_a_batch_that_is_full_may_have_no_full_graph() -> None:
    """33 people, `max_num_seqs=33`: their decode is padded to 40, and no FULL graph is that large."""
    sizes = cudagraph_capture_sizes(33, 8192)
    made = CudagraphDispatcher(CUDAGraphMode.FULL_AND_PIECEWISE, sizes, 33)
    assert made.dispatch(32, uniform_decode=True) == (FULL, BatchDescriptor(32, 32, True))
    assert made.dispatch(33, uniform_decode=True) == (PIECEWISE, BatchDescriptor(40))


def test_what_is_captured_first() -> None:
    """Pieces, then FULL, the largest first: 51 and 35 captures with vLLM's numbers of an L4."""
    sizes = cudagraph_capture_sizes(256, 8192)
    made = CudagraphDispatcher(CUDAGraphMode.FULL_AND_PIECEWISE, sizes, 256)
    (first, pieces), (second, full) = made.get_capture_descs()
    assert (first, len(pieces), pieces[0]) == (PIECEWISE, 51, BatchDescriptor(512))
    assert (second, len(full), full[0]) == (FULL, 35, BatchDescriptor(256, 256, True))
    assert CudagraphDispatcher(NONE, sizes, 256).get_capture_descs() == []


def test_uniform_means_equal_counts() -> None:
    """Three prompts of which one token is left pass for decodes; two decodes beside a chunk do not."""
    assert is_uniform_decode(1, 1, num_tokens=3, num_reqs=3)
    assert not is_uniform_decode(30, 1, num_tokens=32, num_reqs=3)
    assert is_uniform_decode(4, 4, num_tokens=8, num_reqs=2)
    assert not is_uniform_decode(1, 4, num_tokens=2, num_reqs=2)


def test_a_mode_is_two_modes() -> None:
    """How each answers, for decode and mixed batches."""
    told = {
        mode.name: (mode.decode_mode().name, mode.mixed_mode().name, mode.separate_routine())
        for mode in CUDAGraphMode
    }
    assert told == {
        "NONE": ("NONE", "NONE", False),
        "PIECEWISE": ("PIECEWISE", "PIECEWISE", False),
        "FULL": ("FULL", "FULL", False),
        "FULL_DECODE_ONLY": ("FULL", "NONE", True),
        "FULL_AND_PIECEWISE": ("FULL", "PIECEWISE", True),
    }
    piecewise = [mode.name for mode in CUDAGraphMode if mode.has_piecewise_cudagraphs()]
    assert piecewise == ["PIECEWISE", "FULL_AND_PIECEWISE"]
    full = [mode.name for mode in CUDAGraphMode if mode.has_full_cudagraphs()]
    assert full == ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
    assert [mode.is_valid_runtime_mode() for mode in CUDAGraphMode] == [True] * 3 + [False] * 2
    assert [bool(mode) for mode in CUDAGraphMode] == [False, True, True, True, True]
    assert f"{CUDAGraphMode.FULL_DECODE_ONLY}" == "FULL_DECODE_ONLY"


def test_a_lowered_mode_and_a_cut_maximum_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """What one gets is not what one asked for, and the log says both."""
    logging.getLogger("mini_vllm.cudagraph.modes").setLevel(logging.WARNING)
    mode = resolve_cudagraph_mode(
        FULL, AttentionCGSupport.UNIFORM_BATCH, min_cg_attn_backend="FLASH_ATTN"
    )
    assert mode is CUDAGraphMode.FULL_AND_PIECEWISE
    assert cudagraph_capture_sizes(256, 8192, max_cudagraph_capture_size=42)[-1] == 40
    said = [record.message for record in caplog.records]
    assert "FULL lowered to FULL_AND_PIECEWISE" in said[0]
    assert "FLASH_ATTN" in said[0]
    assert "42 is no rung: cut to 40" in said[1]


def _dispatcher(mode: CUDAGraphMode = FULL, sizes: Any = (1, 2, 4), **kwargs: int) -> Any:
    return CudagraphDispatcher(mode, sizes, **({"max_num_seqs": 4} | kwargs))


PAIR = CUDAGraphMode.FULL_AND_PIECEWISE
REFUSED: list[tuple[Any, str]] = [
    (lambda: cudagraph_capture_sizes(0, 8), "max_num_seqs must be an integer of at least 1, got 0"),
    (lambda: cudagraph_capture_sizes(4, -8), "max_num_batched_tokens .* got -8"),
    (lambda: cudagraph_capture_sizes(4, True), "max_num_batched_tokens .* got True"),
    (lambda: cudagraph_capture_sizes(4, 8, uniform_decode_query_len=0), "query_len .* got 0"),
    (lambda: cudagraph_capture_sizes(4, 8, performance_mode="fast"), "one of balanced.* got 'fast'"),
    (lambda: cudagraph_capture_sizes(4, 8, max_cudagraph_capture_size=0), "capture_size .* got 0"),
    (lambda: cudagraph_capture_sizes(4, 8, cudagraph_capture_sizes=[]), "at least one size"),
    (lambda: cudagraph_capture_sizes(4, 8, cudagraph_capture_sizes=[1, 0]), "a size .* got 0"),
    (lambda: cudagraph_capture_sizes(4, 8, cudagraph_capture_sizes=[1.5]), "a size .* got 1.5"),
    (
        lambda: cudagraph_capture_sizes(
            4, 8, max_cudagraph_capture_size=16, cudagraph_capture_sizes=[4, 16]
        ),
        r"\(16\) must be the largest .* max_num_batched_tokens \(8\) allows, which is 4",
    ),
    (lambda: adjust_cudagraph_sizes_for_spec_decode([1, 2], 3), r"\[1, 2\] holds .* 3 tokens \(2 drafts"),
    (
        lambda: resolve_cudagraph_mode(FULL, AttentionCGSupport.NEVER, min_cg_attn_backend="CPU_ATTN"),
        "FULL is not supported by the attention backend CPU_ATTN",
    ),
    (lambda: PAIR.has_mode(PAIR), "NONE, PIECEWISE or FULL, got FULL_AND_PIECEWISE"),
    (lambda: _dispatcher(sizes=[4, 2]), r"must rise, each size once, got \[4, 2\]"),
    (lambda: _dispatcher(sizes=[2, 2]), r"must rise, each size once, got \[2, 2\]"),
    (lambda: _dispatcher(sizes=[0, 2]), "a capture size must be .* got 0"),
    (lambda: _dispatcher(max_num_seqs=0), "max_num_seqs .* got 0"),
    (lambda: _dispatcher(PAIR, (4, 6), uniform_decode_query_len=4), "padded to 6, .* no multiple .* 4"),
    (lambda: _dispatcher().dispatch(-1), "num_tokens must be .* at least 0, got -1"),
    (lambda: _dispatcher().dispatch(1, invalid_modes={NONE, FULL, PIECEWISE}), "all three"),
    (lambda: _dispatcher(PAIR).dispatch(3, invalid_modes={NONE, PIECEWISE}), "3 tokens.*forbids NONE"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "said"), [pytest.param(*one, id=str(i)) for i, one in enumerate(REFUSED)]
)
def test_bad_input_is_named(ask: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ask()
