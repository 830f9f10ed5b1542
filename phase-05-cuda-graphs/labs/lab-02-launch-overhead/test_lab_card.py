"""Lab 05-02: the card's own time, and the batch from which a graph gains nothing."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.learner.labs import load_support

same = load_support(__file__).same


def test_launching_or_computing(lab: ModuleType) -> None:
    """In Kim's step at batch 1 the host sets the pace without a graph, and the card with one."""
    read = 2 * 1_235_814_400 / 3350e9
    for mode, launched in (("NONE", 195), ("PIECEWISE", 49), ("FULL", 1)):
        for launch_s in (3e-6, 5e-6, 20e-6):
            got = lab.decode_time(lab.H100, lab.KIMS, mode, 1, launch_s)
            same(
                got,
                max(launched * launch_s, read),
                f"{mode}, {launch_s * 1e6:g} us a launch, seconds",
            )


def test_each_request_reads_its_own_cache(lab: ModuleType) -> None:
    """Two requests of 1,000 tokens read the weights once, and K and V of both."""
    for model, layers, size in ((lab.KIMS, 16, 64), (lab.LLAMA_3_8B, 32, 128)):
        got = lab.decode_time(lab.H100, model, "FULL", 2, 5e-6, 1000)
        want = (2 * model.params + 2 * 1000 * 4 * layers * 8 * size) / 3350e9
        same(got, want, f"{model.name}, 2 requests of 1,000 tokens, FULL, seconds")


def test_padding_reads_no_more(lab: ModuleType) -> None:
    """33 requests run as 40 rows read the same weights, and the K and V of 33."""
    for context in (0, 1000):
        got = lab.decode_time(lab.H100, lab.KIMS, "FULL", 33, 5e-6, context, padded=40)
        want = (2 * 1_235_814_400 + 33 * context * 32_768) / 3350e9
        same(got, want, f"33 requests of {context} tokens in a graph of 40 rows, seconds")


def test_padding_computes_more(lab: ModuleType) -> None:
    """If arithmetic sets the pace, a padding row costs as much as any row."""
    for mode in ("FULL", "PIECEWISE"):
        got = lab.decode_time(lab.H100, lab.KIMS, mode, 481, 5e-6, padded=496)
        want = 2 * 1_235_814_400 * 496 / 989.5e12
        same(got, want, f"481 requests in graphs of 496 rows, {mode}, seconds")


def test_nothing_is_padded_without_a_graph(lab: ModuleType) -> None:
    """An eager step has no padding."""
    got = lab.decode_time(lab.H100, lab.KIMS, "NONE", 481, 1e-6, padded=496)
    same(got, 2 * 1_235_814_400 * 481 / 989.5e12, "481 requests, eager, seconds")


def test_planning_counts(lab: ModuleType) -> None:
    """The host's other work counts, under both kinds of scheduling."""
    read = 2 * 1_235_814_400 / 3350e9
    for async_scheduling, want in ((False, read + 0.3e-3), (True, read)):
        got = lab.decode_time(
            lab.H100,
            lab.KIMS,
            "FULL",
            1,
            5e-6,
            planning_s=0.3e-3,
            async_scheduling=async_scheduling,
        )
        kind = "asynchronous" if async_scheduling else "synchronous"
        same(got, want, f"a planning of 0.3 ms, {kind}, seconds")
    got = lab.decode_time(lab.H100, lab.KIMS, "FULL", 1, 5e-6, planning_s=0.3e-3)
    same(got, read, "planning 0.3 ms, and nothing said of scheduling: asynchronous, seconds")
    got = lab.decode_time(lab.H100, lab.KIMS, "NONE", 1, 5e-6, planning_s=0.3e-3)
    same(got, 195 * 5e-6 + 0.3e-3, "planning 0.3 ms and 195 launches, asynchronous, seconds")


@pytest.mark.parametrize(
    ("launch_us", "context", "want"),
    [
        (3, 0, 1), (3.8, 1000, 1), (4, 1000, 5), (5, 1000, 25), (6, 1000, 45), (5, 100, 243), (5, 0, 391),
        (20, 4000, 81), (20, 0, None),
    ],
)  # fmt: skip
def test_where_graphs_stop_to_matter(
    lab: ModuleType, launch_us: float, context: int, want: int | None
) -> None:
    """For Kim's model, graphs gain nothing from the batch whose card time reaches the launching time."""
    got = lab.first_batch_without_gain(lab.H100, lab.KIMS, launch_us * 1e-6, context)
    assert got == want, (
        f"{launch_us} us a launch, {context} tokens each: from batch {got} on? 195 launches take "
        f"{195 * launch_us / 1e3:g} ms, and the card takes as long from {want} on"
    )


def test_as_long_is_no_gain(lab: ModuleType) -> None:
    """A batch whose launching takes exactly as long as the card's work gains nothing."""
    card = lab.Card("round", 1e30, 1000.0)
    kernels = lab.Kernels(1, layer=3, split=1, before=0, after=0, beside=1)
    model = lab.Model("round", 1000, 125, kernels)
    got = lab.first_batch_without_gain(card, model, 1.0, context=4)
    assert got == 4, (
        f"2 s, and half a second a request: 4 requests make the 4 s of four launches, one of them "
        f"beside the model, not {got}"
    )
    got = lab.first_batch_without_gain(card, model, 1.0, context=4, most=3)
    assert got is None, f"up to 3 there is none, got {got}"
    got = lab.first_batch_without_gain(card, model, 1.0, context=4, most=4)
    assert got == 4, f"`most` itself is tried, got {got}"
    nothing = lab.Model("a cache alone", 0, 125, kernels)
    for launch_s, want in ((256.0, 1024), (256.1, None)):
        got = lab.first_batch_without_gain(card, nothing, launch_s, context=8)
        assert got == want, (
            f"1 s a request, {4 * launch_s:g} s of launches: {want} of 1,024, not {got}"
        )


def test_an_empty_cache_unless_it_is_said(lab: ModuleType) -> None:
    """Without a context the cache is empty, as for `decode_time`."""
    got = lab.first_batch_without_gain(lab.H100, lab.KIMS, 5e-6)
    assert got == 391, f"empty caches, 5 us a launch: 391, not {got}"
    nothing = lab.Model("a cache alone", 0, 125, lab.Kernels(1))
    got = lab.first_batch_without_gain(lab.Card("round", 1e30, 1000.0), nothing, 0.01)
    assert got is None, f"no weights and empty caches: the card has nothing to do, None; got {got}"


def test_a_large_model_never_waits(lab: ModuleType) -> None:
    """Llama-3-8B never waits at 3 to 6 us per launch: the card has more to do, even at batch 1."""
    got = lab.launches(lab.LLAMA_3_8B.kernels, "NONE")
    assert got == 387, f"32 layers of 12 kernels and 3 at the ends are 387 launches, not {got}"
    for launch_us in (3, 4, 5, 6):
        got = lab.first_batch_without_gain(lab.H100, lab.LLAMA_3_8B, launch_us * 1e-6)
        assert got == 1, f"387 launches of {launch_us} us, 4.79 ms of reading: batch 1, not {got}"
