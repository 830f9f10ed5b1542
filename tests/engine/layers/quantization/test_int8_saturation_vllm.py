"""Phase 06's int8_saturation.py: where vLLM's int8 product is wrong, and that 16 bits explain it."""

from __future__ import annotations

import json
import platform

import pytest

from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="VNNI is a matter of x86 processors"),
]
SCRIPT = ROOT / "phase-06-quantization" / "int8_saturation.py"
CHILD = """
import json, sys
from pathlib import Path
from course.learner.labs import load_module
tried = load_module(Path(sys.argv[1]), "int8_saturation_tested")
extension = tried.load(avx2=True)
rows = [[code, int((tried.errors(code) != 0).sum()), tried.largest(code), tried.predicted(code)]
        for code in range(1, 128)]
print(json.dumps([extension, rows]))
"""


def test_without_vnni_two_products_are_added_in_16_bits() -> None:
    """Right up to codes of 64, as 2 * 255 * 64 is 32,640; behind it short by what that sum cannot hold."""
    extension, rows = json.loads(output_of("-c", CHILD, SCRIPT).splitlines()[-1])
    assert extension == "_C_AVX2"
    for code, wrong, missing, predicted in rows:
        assert missing == predicted, f"codes of {code}"
        assert not wrong or code > 64, f"{wrong} wrong with codes up to {code}"
    assert rows[-1][1] > 500, "about two of three, where codes reach 127"


def test_the_page_shows_what_the_script_prints() -> None:
    printed = output_of(SCRIPT, "--avx2").strip().splitlines()
    page = (ROOT / "docs/FOUND_IN_VLLM.md").read_text(encoding="utf-8")
    assert "\n".join(printed) in page
