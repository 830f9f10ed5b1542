"""Lab 05-06: your runner under the stand-in, which is as strict as a GPU and says more; or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
Night = support.Night
pytestmark = pytest.mark.torch
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products gain nothing by a second thread, which waits for its work at full speed."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


on_each_device = pytest.mark.parametrize("device", DEVICES)


@on_each_device
def test_a_function_is_replayed_on_new_numbers(lab: ModuleType, device: str) -> None:
    """`Captured` replays a function on what its input holds at the time of the replay."""
    import torch

    from mini_vllm.gpu.graph_standin import graphs_for

    graphs = graphs_for(device)
    captured = lab.Captured(lambda x: x * 2 + 1, graphs, graphs.graph_pool_handle())
    x = torch.zeros(4, device=device)
    with torch.inference_mode(), support.guarded("In Captured", reads=False):
        captured.capture(2, x[:2])
        captured.capture(1, x[:1])
        for numbers in ([3.0, 4.0], [5.0, 6.0]):
            x[:2].copy_(torch.tensor(numbers))
            output = captured.replay(2)
            want = [2 * n + 1 for n in numbers]
            assert output.tolist() == want, (
                f"x * 2 + 1 of {numbers} is {want}, the replay gave {output.tolist()}: a replay writes into "
                "the output that its capture made"
            )
        single = captured.replay(1)
        assert single.tolist() == [11.0], (
            f"size 1 has a graph of its own; it gave {single.tolist()}"
        )


@on_each_device
def test_two_decodes_each_from_their_own_inputs(lab: ModuleType, device: str) -> None:
    """Kim's second replay reads the second step's token, position, slot, blocks and length."""
    night = Night(lab, device).capture()
    night.run(
        "The prompt fills a size, so it is not padding: look at the copies into the buffers, and at what "
        "goes from piece to piece.",
        kim=4,
    )
    for step in range(6):
        night.run(
            f"Decode number {step}. A replay reads the buffers that it was captured on.", kim=1
        )


@on_each_device
def test_a_long_sequence_is_read_to_its_end(lab: ModuleType, device: str) -> None:
    """What the host says at capture is recorded with the kernels, and must be true of every replay."""
    night = Night(lab, device).capture()
    why = (
        "Attention was captured for shorter sequences: look at every number that the host gives it."
    )
    night.run(why, kim=16)
    night.run(why, kim=16)
    night.run(why, kim=1)
    night.run(why, kim=16)
    night.run(why, kim=13)
    night.run(why, kim=1)
    night.run(why + " Kim is now as long as max_model_len allows.", kim=1)


@on_each_device
def test_a_request_of_padding_has_no_tokens(lab: ModuleType, device: str) -> None:
    """`fill` returns the step's own numbers, and padding requests that begin where the last one ends."""
    night = Night(lab, device)
    steps = [(16, 8, {f"r{i}": 2 for i in range(8)}), (4, 4, {"r0": 1, "r1": 1, "r2": 1})]
    steps.append((8, 2, {"r0": 1, "r1": 4}))
    for size, num_reqs, tokens in steps:
        ids, positions, host = night.arrays(**tokens)
        md = night.fill(size, num_reqs, (ids, positions, host))
        doing = f"fill({size}, {num_reqs}, ...) of {len(tokens)} requests, {len(ids)} tokens:"
        extra = num_reqs - len(tokens)
        starts = [*host.query_start_loc.tolist(), *[len(ids)] * extra]
        assert md.query_start_loc.tolist() == starts, (
            f"{doing} query_start_loc is {md.query_start_loc.tolist()} and should be {starts}: a "
            "request of padding begins and ends where the step ends"
        )
        lens = [*host.seq_lens.tolist(), *[0] * extra]
        assert md.seq_lens.tolist() == lens, (
            f"{doing} seq_lens is {md.seq_lens.tolist()} and should be {lens}: a request of padding has 0"
        )
        slots = md.slot_mapping.tolist()
        assert len(slots) == size, f"{doing} {len(slots)} slots, and the size is {size}"
        assert all(slot < support.BLOCK_SIZE for slot in slots[len(ids) :]), (
            f"{doing} the rows of padding have the slots {slots[len(ids) :]}, which are somebody's"
        )
        said = md.num_decodes, md.max_query_len, md.max_seq_len
        longer = [count != 1 for count in tokens.values()]
        own = [*longer, True].index(True), host.max_query_len, host.max_seq_len
        assert said == own, (
            f"{doing} num_decodes, max_query_len, max_seq_len are {said}, the step's own are {own}"
        )


@on_each_device
def test_capture_writes_to_nobodys_slot(lab: ModuleType, device: str) -> None:
    """A warm-up runs for real on what is in the buffers, so it must write to no request's slot."""
    night = Night(lab, device, sizes=(1, 2), max_num_seqs=2)
    night.fill(2, 2, night.arrays(kim=1, lou=1))
    night.capture()
    for layer, cache in enumerate(night.caches):
        blocks = (cache[1:].flatten(1).abs().sum(1).nonzero()[:, 0] + 1).tolist()
        assert not blocks, (
            f"capture() has written K and V of layer {layer} into blocks {blocks}, Kim's and Lou's: the step "
            "before had left their slots in the buffer"
        )


@on_each_device
def test_padding_writes_to_nobodys_slot(lab: ModuleType, device: str) -> None:
    """Padding rows write to no request's slot, even after a large step left its numbers in the buffers."""
    why = "A row of padding has written its K and V, to a slot that an earlier step left in the buffer."
    night = Night(lab, device).capture()
    names = [f"r{i}" for i in range(8)]
    night.run("Sixteen tokens need no padding.", **dict.fromkeys(names, 2))
    night.run("Eight decodes need no padding.", **dict.fromkeys(names, 1))
    night.run(why, **dict.fromkeys(names[:5], 1))
    night.run(why, **dict.fromkeys(names[:3], 1))
    night.run(why, r0=5, r1=1, r2=5)
    night.run(
        "All eight once more, on what the others left in the cache.", **dict.fromkeys(names, 1)
    )


@on_each_device
def test_mixed_batches_run_in_pieces(lab: ModuleType, device: str) -> None:
    """Lou's prompt among decodes runs in pieces of one size, with attention on the step's requests."""
    night = Night(lab, device).capture()
    why = (
        "Attention stands between the pieces, and the next piece looks for its result in one place."
    )
    night.run(why, kim=3)
    night.run(why, kim=1, lou=6)
    night.run(why, kim=1, lou=7, ada=4)
    night.run(why, lou=2, kim=1, ada=1)
    night.run(why, kim=1, lou=1, ada=1)


@on_each_device
def test_what_the_first_call_makes_is_there_for_every_graph(lab: ModuleType, device: str) -> None:
    """A table that the model makes on its first call for a size exists before the capture."""
    night = Night(lab, device, lazy=True).capture()
    why = (
        "This model makes a table when a size first comes, and in a capture that call makes nothing. What "
        "does the first call of every size have to be?"
    )
    night.run(why, kim=5)
    night.run(why, kim=1)
    night.run(why, kim=1, lou=3)


@on_each_device
def test_a_decode_batch_without_a_full_graph_runs_in_pieces(lab: ModuleType, device: str) -> None:
    """Five decodes where six may run take pieces: size 8 has no FULL graph, as no step has eight requests."""
    night = Night(lab, device, max_num_seqs=6).capture()
    names = [f"r{i}" for i in range(6)]
    night.run("Twelve tokens of six prompts.", **dict.fromkeys(names, 2))
    why = "Their size is 8, and with max_num_seqs 6 that is captured in pieces only."
    night.run(why, **dict.fromkeys(names[:5], 1))
    night.run(why, **dict.fromkeys(names, 1))
    night.run("Four decodes have a FULL graph.", **dict.fromkeys(names[:4], 1))


@on_each_device
def test_a_step_that_has_graphs_uses_them(lab: ModuleType, device: str) -> None:
    """A step is one replay for the whole model, or one per piece, or none above the largest size."""
    night = Night(lab, device, max_num_seqs=6).capture()
    names = [f"r{i}" for i in range(5)]
    pieces = len(night.model.layers) + 1
    steps = [
        ("Five prompts of two", pieces, dict.fromkeys(names, 2)),
        ("Four decodes", 1, dict.fromkeys(names[:4], 1)),
        ("Five decodes, of size 8 where six may run", pieces, dict.fromkeys(names, 1)),
        ("A decode and a prompt", pieces, {"r0": 1, "lou": 3}),
        ("Seventeen tokens", 0, {"kim": 17}),
    ]
    for what, want, tokens in steps:
        with support.counted_replays(device) as done:
            night.run(what, **tokens)
        assert len(done) == want, (
            f"{what}: run() replayed {len(done)} graphs, and {want} is right: 1 for the whole model, "
            f"{pieces} for the pieces, 0 where no size has room"
        )


@on_each_device
def test_more_tokens_than_the_largest_size_run_without_a_graph(
    lab: ModuleType, device: str
) -> None:
    """Seventeen tokens have no graph. Nothing is captured for them, and nothing is cut off."""
    night = Night(lab, device)
    with support.counted_captures(device) as begun:
        night.capture()
        captured = len(begun)
        night.run("Seventeen tokens run as they are.", kim=17)
        night.run("Kim's token and nineteen of Lou's.", kim=1, lou=19)
        night.run("And a decode after that.", kim=1, lou=1)
        assert len(begun) == captured, (
            f"run() captured {len(begun) - captured} more graphs: a request would have waited for that"
        )


@on_each_device
def test_nothing_is_captured_after_the_start(lab: ModuleType, device: str) -> None:
    """`capture` makes every graph there will be: pieces for all sizes, the model up to `max_num_seqs`."""
    night = Night(lab, device)
    with support.counted_captures(device) as begun:
        night.capture()
        pieces = len(night.model.layers) + 1
        want = len(support.SIZES) * pieces + sum(n <= support.MAX_NUM_SEQS for n in support.SIZES)
        assert len(begun) == want, (
            f"{len(support.SIZES)} sizes of {pieces} pieces, and the whole model for those up to "
            f"{support.MAX_NUM_SEQS}, are {want} graphs; capture() made {len(begun)}"
        )
        for count in (3, 5, 7, 11, 13):
            night.run("Its size has a graph.", **{f"r{count}": count})
        night.run("Three decodes are padded to four.", r3=1, r5=1, r7=1)
        assert len(begun) == want, (
            f"run() captured {len(begun) - want} more graphs: a request would have waited for that"
        )


@on_each_device
def test_a_result_belongs_to_the_caller(lab: ModuleType, device: str) -> None:
    """The next step does not change what an earlier step returned."""
    night = Night(lab, device).capture()
    night.run("The prompts.", kim=4, lou=4)
    for tokens in ({"kim": 1, "lou": 1}, {"kim": 2, "lou": 2}):
        first = night.run("A step.", **tokens)
        before = first.tolist()
        night.run("The next one, of the same size.", **tokens)
        with support.guarded("Reading the first result again"):
            after = first.tolist()
        assert after == before, (
            "the first step's result has changed while the second ran: a graph writes every result to "
            "the same memory"
        )


@pytest.mark.parametrize(
    ("sizes", "max_num_seqs"),
    [pytest.param((4, 8, 16, 32, 64), 1, id="pieces"), pytest.param((4, 8, 16), 16, id="whole")],
)
def test_all_sizes_fit_into_the_memory_of_the_largest(
    lab: ModuleType, sizes: tuple[int, ...], max_num_seqs: int
) -> None:
    """In one pool, largest size first, a small graph uses the memory that a large one has freed."""
    with support.small_segments():
        largest = sum(support.pool_bytes(lab, sizes[-1:], max_num_seqs))
        pools = support.pool_bytes(lab, sizes, max_num_seqs)
    assert len(pools) <= 2, (
        f"the graphs lie in {len(pools)} pools, and what one pool has free no other can use: all share one, "
        "or pieces and whole models have one each"
    )
    kind = "pieces" if max_num_seqs == 1 else "pieces and whole"
    taken = sum(pools)
    assert taken <= 1.15 * largest, (
        f"{kind}: the graphs of size {sizes[-1]} take {largest} bytes, those of all sizes {taken}, "
        f"{taken / largest:.2f} times as many: a pool never gives memory back, but it hands out again what "
        "is free"
    )


@on_each_device
def test_the_engine_says_the_same_under_your_graphs(lab: ModuleType, device: str) -> None:
    """The shipped checkpoint gives the same tokens under your graphs, with chunks, hits and preemptions."""
    from mini_vllm import LLM, SamplingParams

    settings = {
        "attention": "torch", "max_num_seqs": 6, "max_num_batched_tokens": 24,
        "max_model_len": 96, "num_gpu_blocks": 18,
    }  # fmt: skip
    prompts = [f"Kim asks for number {i}" + " and one more" * (i % 4) for i in range(8)]
    params = SamplingParams(temperature=0, max_tokens=6)
    with support.guarded("Without your graphs"):
        expected = LLM(**settings).generate(prompts, params, use_tqdm=False)
        llm = LLM(**settings)
    engine = llm.llm_engine.engine_core
    import torch

    with torch.inference_mode(), support.guarded("With the shipped checkpoint", reads=False):
        mine = lab.CaptureRunner(
            engine.model_runner.model, engine.model_runner.kv_caches, [2, 6, 16], 6, 96
        )
        mine.capture()
    # Without drafts no step asks for the hidden states of other layers, the fourth argument.
    engine.model_runner._model_forward = lambda ids, places, md, _: mine.run(ids, places, md)
    with support.guarded("With the shipped checkpoint"):
        found = llm.generate(prompts, params, use_tqdm=False)
    for prompt, ours, theirs in zip(prompts, found, expected, strict=True):
        said, right = (o.outputs[0].token_ids for o in (ours, theirs))
        assert said == right, f"{prompt!r}: {said} under your graphs, {right} without"
