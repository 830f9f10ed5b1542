"""The engine under simulated graphs: the same tokens in every mode, and launches as the formulas say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, EngineConfig, SamplingParams
from mini_vllm.attention import AttentionMetadata, OnlineAttention, PagedAttention, TiledAttention
from mini_vllm.config.compilation import CUDAGRAPH_MODES
from mini_vllm.cudagraph import (
    BatchDescriptor,
    CudagraphDispatcher,
    CUDAGraphMode,
    GraphRunner,
    LaunchCounter,
    build_program,
)
from mini_vllm.cudagraph.graph import Values, run_kernels
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.outputs import CUDAGraphStat
from mini_vllm.worker.graph_forward import NumpyGraphForward
from tests.engine.core.sched.test_async_scheduling import TEXTS, TIGHT, mixed_params, said
from tests.engine.helpers.engine.engine_helpers import SMALL, make_engine, random_model
from tests.engine.helpers.engine.workloads import (
    compare,
    drive,
    prompts,
    random_workload,
    sharing_jobs,
)
from tests.engine.helpers.engine.workloads import make_engine as workload_engine
from tests.engine.helpers.thorough import either

MODES = CUDAGRAPH_MODES[1:]
PARTS = EngineParts()
L = SMALL.num_hidden_layers
LAUNCHES = {"NONE": 12 * L + 3, "PIECEWISE": L + 1 + 2 * L, "FULL": 1}


def graph_forward(engine: LLMEngine) -> NumpyGraphForward:
    forward = engine.engine_core.model_runner.forward
    assert isinstance(forward, NumpyGraphForward)
    return forward


def watch(engine: LLMEngine) -> list[CUDAGraphStat]:
    """How each step ran, as it is told to an observer of steps."""
    stats: list[CUDAGraphStat] = []

    def observe(record: Any) -> None:
        if record.model_runner_output.cudagraph_stats is not None:
            stats.append(record.model_runner_output.cudagraph_stats)

    engine.engine_core.step_observers.append(observe)
    return stats


# -- the program ----------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", [PagedAttention, TiledAttention, OnlineAttention])
def test_the_program_is_the_model(attention: Any) -> None:
    """Bit for bit, hidden states and caches, for chunks beside decodes; 12 L + 3 kernels of them."""
    rng = np.random.default_rng(1)
    model = random_model(parts=EngineParts(attention=attention))
    shape = attention.get_kv_cache_shape(12, 4, SMALL.num_key_value_heads, SMALL.head_dim)
    before = [rng.standard_normal(shape).astype(np.float32) for _ in range(L)]
    query_lens, seq_lens = [1, 5, 1, 2], [9, 5, 13, 4]
    md = AttentionMetadata(
        query_start_loc=np.array([0, 1, 6, 7, 9], np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        block_table=np.array([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9], [10, 0, 0, 0]], np.int32),
        slot_mapping=np.array([12, 16, 17, 18, 19, 20, 36, 42, 43]),
        block_size=4,
    )
    positions = np.concatenate(
        [np.arange(s - q, s) for q, s in zip(query_lens, seq_lens, strict=True)]
    )
    input_ids = rng.integers(0, SMALL.vocab_size, len(positions))
    caches = [cache.copy() for cache in before]
    expected = model.forward(input_ids, positions, caches, md)

    kernels = build_program(model, block_size=4)
    counter, found = LaunchCounter(), [cache.copy() for cache in before]
    values: Values = {f"kv_cache.{i}": cache for i, cache in enumerate(found)}
    values |= {"input_ids": input_ids, "positions": positions, "slot_mapping": md.slot_mapping}
    values |= {n: getattr(md, n) for n in ("query_start_loc", "seq_lens", "block_table")}
    run_kernels(kernels, values, len(input_ids), counter)
    # Bit for bit: the kernels multiply matrices of the shapes that the model multiplies, in its order.
    assert np.array_equal(values["normed"], expected)
    assert all(np.array_equal(a, b) for a, b in zip(found, caches, strict=True))
    assert len(kernels) == counter.launches == 12 * L + 3
    assert sum(kernel.splitting for kernel in kernels) == 2 * L


# -- the same tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", MODES)
def test_random_workloads_give_the_right_tokens(mode: str, ahead: bool) -> None:
    """Arrivals, aborts, chunks, hits, preemptions, with the default ladder and with others; against
    attention by the formula."""
    ladders: list[list[int] | None] = [[1, 2, 4, 8], [3, 7], None, [2]]
    first = 200 + 8 * MODES.index(mode) + 2 * ahead
    seen: Counter[str] = Counter()
    for seed in range(first, first + either(1, 6)):
        jobs, settings = random_workload(seed)
        engine = workload_engine(
            PARTS, **settings, async_scheduling=ahead, cudagraph_mode=mode,
            cudagraph_capture_sizes=ladders[seed % 4],
        )  # fmt: skip
        stats = watch(engine)
        compare(f"{mode}, seed {seed}", engine, jobs, drive(engine, jobs)[0])
        for stat in stats:
            seen[stat.runtime_mode] += 1
            assert stat.launches == LAUNCHES[stat.runtime_mode], stat
            assert stat.num_paddings == stat.num_padded_tokens - stat.num_unpadded_tokens >= 0
    assert seen[CUDAGraphMode[mode].decode_mode().name], f"no step ran as a graph: {seen}"


@pytest.mark.parametrize("ahead", either([True], [False, True]))
def test_the_shipped_model_says_the_same(ahead: bool) -> None:
    """Penalties, seeds, `n`, logprobs of prompt and output; short of blocks, with chunks and hits."""
    params = mixed_params("the")
    texts = [TEXTS[i % len(TEXTS)] for i in range(len(params))]
    settings = TIGHT | {"async_scheduling": ahead}
    expected = said(LLM(**settings).generate(texts, params))
    mode, sizes = ("FULL", [2, 6, 11]) if ahead else ("FULL_AND_PIECEWISE", None)
    llm = LLM(cudagraph_mode=mode, cudagraph_capture_sizes=sizes, **settings)
    assert said(llm.generate(texts, params)) == expected
    assert llm.llm_engine.engine_core.scheduler.num_preemptions


@pytest.mark.parametrize("mode", MODES)
def test_what_padding_holds_reaches_nobody(mode: str) -> None:
    """Rows of padding hold other tokens at other places, and all memory of graphs NaN, before every step."""
    jobs = sharing_jobs()
    engine = workload_engine(PARTS, cudagraph_mode=mode, cudagraph_capture_sizes=[5, 9, 40])
    forward, rng = graph_forward(engine), np.random.default_rng(0)

    def poison() -> None:
        b = forward.buffers
        b["input_ids"][:] = rng.integers(0, SMALL.vocab_size, len(b["input_ids"]))
        b["positions"][:] = rng.integers(0, 99, len(b["positions"]))
        b["slot_mapping"][:] = rng.integers(0, 99, len(b["slot_mapping"]))
        for name, most in (("query_start_loc", 99), ("seq_lens", 99), ("block_table", 20)):
            b[name][:] = rng.integers(1, most, b[name].shape)
        for array in forward.pool._arrays.values():
            array[:] = np.nan

    tokens, cached = drive(engine, jobs, before_step=poison)
    compare(mode, engine, jobs, tokens)
    assert sum(hit or 0 for hit in cached) > 0
    assert not any(np.isnan(cache).any() for cache in forward.kv_caches)


# -- which step runs how --------------------------------------------------------------------------


def test_a_night_step_by_step() -> None:
    """One prompt of 5, then decodes; another prompt joins, and both go on."""
    one, two = prompts(4, 5, 12)
    for mode, expected in {
        "PIECEWISE": [("PIECEWISE", 5, 8), ("PIECEWISE", 1, 1), ("PIECEWISE", 13, 16)],
        "FULL": [("FULL", 5, 8), ("FULL", 1, 1), ("FULL", 13, 16)],
        "FULL_DECODE_ONLY": [("NONE", 5, 5), ("FULL", 1, 1), ("NONE", 13, 13)],
        "FULL_AND_PIECEWISE": [("PIECEWISE", 5, 8), ("FULL", 1, 1), ("PIECEWISE", 13, 16)],
    }.items():
        engine = make_engine(cudagraph_mode=mode, num_gpu_blocks=30, max_num_seqs=8)
        stats = watch(engine)
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        engine.add_request("one", one, params)
        engine.step()
        engine.step()
        engine.add_request("two", two, params)
        for _ in range(2):
            engine.step()
        found = [(s.runtime_mode, s.num_unpadded_tokens, s.num_padded_tokens) for s in stats]
        decode = CUDAGraphMode[mode].decode_mode().name
        assert found == [*expected, (decode, 2, 2)], mode
        assert [s.launches for s in stats] == [LAUNCHES[s.runtime_mode] for s in stats]


def test_a_step_above_the_ladder_runs_kernel_by_kernel() -> None:
    engine = make_engine(cudagraph_mode="FULL", cudagraph_capture_sizes=[2, 4], num_gpu_blocks=30)
    stats = watch(engine)
    engine.add_request(
        "0", *prompts(5, 6), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    )
    while engine.has_unfinished_requests():
        engine.step()
    assert stats == [CUDAGraphStat(6, 6, 0, "NONE", 12 * L + 3), CUDAGraphStat(1, 2, 1, "FULL", 1)]
    assert graph_forward(engine).counter.by_kind["graph"] == 1


def test_a_prompts_last_token_is_a_uniform_decode() -> None:
    """Only counts are looked at: a prompt with one token left is as good as a decode."""
    (prompt,) = prompts(6, 9)
    settings = {"long_prefill_token_threshold": 8, "num_gpu_blocks": 30}
    engine = make_engine(cudagraph_mode="FULL_AND_PIECEWISE", **settings)
    stats = watch(engine)
    engine.add_request("0", prompt, SamplingParams(temperature=0, max_tokens=1))
    while engine.has_unfinished_requests():
        engine.step()
    assert [s.runtime_mode for s in stats] == ["PIECEWISE", "FULL"]


# -- the start ------------------------------------------------------------------------------------


def test_pieces_first_and_the_largest_first() -> None:
    made: list[tuple[str, int, int | None]] = []

    class Spy(GraphRunner):
        def _capture(self, values: Values, batch_descriptor: BatchDescriptor) -> Any:
            found = (str(self.runtime_mode), batch_descriptor.num_tokens, batch_descriptor.num_reqs)
            if found not in made:
                made.append(found)
            return super()._capture(values, batch_descriptor)

    engine = make_engine(
        parts=EngineParts(graph_runner=Spy), cudagraph_mode="FULL_AND_PIECEWISE", num_gpu_blocks=30,
        max_num_seqs=4,
    )  # fmt: skip
    assert made == [("PIECEWISE", n, None) for n in (8, 4, 2, 1)] + [
        ("FULL", n, n) for n in (4, 2, 1)
    ]
    forward = graph_forward(engine)
    assert len(forward.full.entries) == 3
    assert [len(piece.entries) for piece in forward.piecewise.pieces] == [4] * (L + 1)
    assert forward.counter.launches == 0
    assert not forward.counter.capturing_enabled
    assert all((cache == 0).all() for cache in forward.kv_caches), (
        "a capture wrote into the KV cache"
    )
    graph = forward.full.entries[BatchDescriptor(4, 4, True)].graph
    assert len(graph.launches) == 12 * L + 3


def test_what_was_not_captured_at_the_start_never_is() -> None:
    """A dispatcher that names a shape nobody captured: the step is an error, not a capture."""

    class Careless(CudagraphDispatcher):
        def dispatch(self, num_tokens: int, *others: Any, **more: Any) -> Any:
            return CUDAGraphMode.FULL, BatchDescriptor(num_tokens, num_tokens)

    parts = EngineParts(cudagraph_dispatcher=Careless)
    engine = make_engine(parts=parts, cudagraph_mode="PIECEWISE", num_gpu_blocks=30)
    engine.add_request("0", *prompts(5, 6), SamplingParams(max_tokens=2))
    with pytest.raises(RuntimeError, match=r"FULL has no graph for .*num_tokens=6"):
        engine.step()


def test_none_is_the_plain_forward() -> None:
    from mini_vllm.worker.forward import NumpyForward

    engine = make_engine(num_gpu_blocks=30)
    assert type(engine.engine_core.model_runner.forward) is NumpyForward
    stats = watch(engine)
    engine.add_request("0", *prompts(5, 6), SamplingParams(max_tokens=2))
    engine.step()
    assert stats == []


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cudagraph_mode": "full"}, "one of NONE, .*FULL_AND_PIECEWISE, got 'full'"),
        ({"cudagraph_mode": 2}, "cudagraph_mode must be one of .* got 2"),
        ({"cudagraph_capture_sizes": []}, r"at least one size, got \[\]"),
        ({"cudagraph_capture_sizes": 8}, "a list of at least one size, got 8"),
        ({"cudagraph_capture_sizes": "12"}, "a list of at least one size, got '12'"),
        ({"cudagraph_capture_sizes": [4, 0]}, "integer of at least 1, got 0"),
        ({"cudagraph_capture_sizes": [True]}, "integer of at least 1, got True"),
        ({"cudagraph_capture_sizes": [9, 5000]}, None),
        (
            {"cudagraph_capture_sizes": [5000]},
            r"\[5000\].* all above max_num_batched_tokens \(4096\)",
        ),
    ],
)
def test_settings(settings: dict[str, Any], words: str | None) -> None:
    if words is None:
        assert (
            EngineConfig(**settings).cudagraph_capture_sizes == settings["cudagraph_capture_sizes"]
        )
        return
    with pytest.raises(ValueError, match=words):
        EngineConfig(**settings)


def test_sizes_above_the_budget_are_left_out() -> None:
    engine = make_engine(
        cudagraph_mode="PIECEWISE", cudagraph_capture_sizes=[500, 3, 3], num_gpu_blocks=30,
        max_num_batched_tokens=20, max_num_seqs=4,
    )  # fmt: skip
    assert graph_forward(engine).dispatcher.capture_sizes == [3]


# -- the command line -----------------------------------------------------------------------------


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The flags reach the engine, and `--stats` tells how the steps ran."""
    from mini_vllm.entrypoints.cli import main

    prompt = ["generate", "The KV cache", "--max-tokens", "8", "--max-num-seqs", "8", "--stats"]
    assert main(prompt) == 0
    plain = capsys.readouterr()
    graphs = ["--cudagraph-mode", "FULL_AND_PIECEWISE", "--cudagraph-capture-sizes", "2", "16"]
    assert main([*prompt, *graphs]) == 0
    graphed = capsys.readouterr()
    assert graphed.out == plain.out
    assert graphed.err.splitlines()[-1] == (
        "steps as graphs: 7 FULL, 1 PIECEWISE; 10 rows of padding; 20 launches in the forward passes"
    )
    assert main([*prompt, *graphs, "--enforce-eager"]) == 0
    assert "launches" not in capsys.readouterr().err + plain.err


def test_enforce_eager_wins() -> None:
    assert LLM(cudagraph_mode="FULL").llm_engine.config.cudagraph_mode == "FULL"
    assert LLM(cudagraph_mode="FULL", enforce_eager=True).llm_engine.config.cudagraph_mode == "NONE"
    with pytest.raises(ValueError, match="enforce_eager must be True or False, got 1"):
        LLM(enforce_eager=1)
