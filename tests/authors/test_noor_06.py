"""What phase 06's pages say of all matrices of the shipped model, of which they show three."""

from __future__ import annotations

import statistics

from course.docs.pages import ROOT
from course.learner.labs import load_module

PHASE = ROOT / "phase-06-quantization"


def test_the_page_shows_gptqs_smallest_its_largest_and_a_typical_gain() -> None:
    noor = load_module(PHASE / "noor.py", "phase_06_noor")
    gains = {}
    for each in noor.MATRICES:
        (_, output), (_, gptq_output) = noor.nearest_and_gptq(*each)
        gains[each] = output / gptq_output
    assert len(gains) == 28
    assert min(gains, key=gains.__getitem__) == (2, "down")
    assert max(gains, key=gains.__getitem__) == (0, "k")
    typical = statistics.median(gains.values())
    assert abs(gains[2, "q"] - typical) < 0.01, f"{gains[2, 'q']} of a median of {typical}"


def test_a_grid_and_the_checkpoint_of_that_grid_measure_the_same() -> None:
    """Scales are stored in 16 bits both ways, so a label has one number on both pages."""
    noor = load_module(PHASE / "noor.py", "phase_06_noor")
    quality = noor.quality()
    for group in (128, 32):
        plain, checkpoint = quality[f"int4 {group}"], quality[f"int4-g{group}"]
        assert plain.perplexity == checkpoint.perplexity
        assert (plain.kl, plain.agreement) == (checkpoint.kl, checkpoint.agreement)
