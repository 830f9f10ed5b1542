"""What phase 06's pages say of all matrices of the shipped model, of which they show three."""

from __future__ import annotations

import json
import random
import statistics
import string

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


def test_gptq_needs_enough_text_and_the_right_one() -> None:
    noor = load_module(PHASE / "noor.py", "phase_06_noor")
    texts = json.loads(noor.CALIBRATION.read_text("utf-8"))
    documents = noor.load_documents(noor.CALIBRATION, noor.DEFAULT_MODEL)
    assert (len(texts), sum(map(len, documents))) == (128, 12_475)
    draw = random.Random(0)
    letters = string.ascii_lowercase + " "
    foreign = ["".join(draw.choice(letters) for _ in range(200)) for _ in range(128)]
    nearest = noor.quality()["int4 128"].perplexity
    assert abs(noor.gptq_perplexity(foreign) - nearest) < 0.005
    assert round(nearest, 2) == 1.44
    assert abs(noor.gptq_perplexity(texts[:1]) - 1.58) < 0.01
