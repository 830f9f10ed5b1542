"""What phase 06's scripts print of real vLLM: what its pages show of it, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.real_vllm.vllm_helpers import output_of, skip_unless_right

PHASE = ROOT / "phase-06-quantization"
kernels, formats = load_scripts(PHASE, "vllm_kernels", "vllm_formats")
SCRIPTS = {"vllm_kernels.py": kernels, "vllm_formats.py": formats}

pytestmark = pytest.mark.vllm


def shown() -> Iterator[tuple[str, str, list[str]]]:
    """Script, topic and lines of each block on the phase's pages that one of the scripts has printed."""
    for page in sorted(PHASE.glob("*.md")):
        for script, blocks in topics_on(page, SCRIPTS).items():
            for topic, lines in blocks.items():
                yield script, topic, lines


@pytest.fixture(scope="module")
def printed() -> dict[str, dict[str, list[str]]]:
    """Script -> topic -> its lines, the topic's name before them. One process a script."""
    found: dict[str, dict[str, list[str]]] = {}
    for script in SCRIPTS:
        lines: list[str] = []
        for line in output_of(PHASE / script).splitlines():
            if line.endswith(", vLLM") and not line.startswith(" "):
                lines = found.setdefault(script, {}).setdefault(line.removesuffix(", vLLM"), [])
            lines.append(line)
    return found


Printed = dict[str, dict[str, list[str]]]


def test_every_topic_is_printed(printed: Printed) -> None:
    assert {name: list(topics) for name, topics in printed.items()} == {
        name: list(module.TOPICS) for name, module in SCRIPTS.items()
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_pages_show_what_is_printed(script: str, printed: Printed) -> None:
    if script == "vllm_formats.py":  # its pages were made where vLLM has all its kernels
        skip_unless_right(bits=4)
        skip_unless_right(bits=8)
    for name, topic, lines in shown():
        if name == script:
            assert lines == printed[script][topic], f"{script} {topic}"


def kernel(printed: Printed, name: str, card: str) -> str:
    """Out of the table of `chosen`: the kernel of a format on a card."""
    format_ = ""
    for line in printed["vllm_kernels.py"]["chosen"][1:]:
        cards, _, answer = line.strip().partition(": ")
        if not answer:
            format_ = cards
        elif format_ == name and card in cards.split(", "):
            return answer.partition(", ")[0]
    raise LookupError(f"{name} on {card}")


@pytest.mark.parametrize("name", ["W4A16 g128", "AWQ g128", "GPTQ g128"])
def test_four_bits_are_marlins_but_on_hopper(printed: Printed, name: str) -> None:
    for card in kernels.CARDS:
        expected = "MacheteLinearKernel" if card == "H100" else "MarlinLinearKernel"
        assert kernel(printed, name, card) == expected, card


def test_fp8_computes_in_eight_bits_from_ada_on(printed: Printed) -> None:
    """Below, Marlin multiplies in 16 bits: Noor's L4 is the first of these cards that does not."""
    for name in ("FP8 channel, token", "FP8 tensor, static"):
        assert kernel(printed, name, "A100") == "MarlinFP8ScaledMMLinearKernel"
        assert kernel(printed, name, "L4") == "CutlassFP8ScaledMMLinearKernel"


def test_four_bit_floats_are_weights_only_before_blackwell(printed: Printed) -> None:
    for name, marlin in (("NVFP4 W4A4", "MarlinNvFp4"), ("MXFP4", "MarlinMxFp4")):
        for card in ("A100", "L4", "H100"):
            assert kernel(printed, name, card) == f"{marlin}LinearKernel"
        assert kernel(printed, name, "B200").startswith("FlashInfer")


def test_what_is_quantised_on_the_cpu(printed: Printed) -> None:
    """The linears are, by the class that the checkpoint's format leads to; the embedding is not."""
    lines = printed["vllm_formats.py"]["loads"]
    layers = [line.split(": ")[1] for line in lines if "qkv_proj" in line]
    assert layers[0] == "UnquantizedLinearMethod"
    assert all("CPU" in layer for layer in layers[1:]), layers
    embeddings = {line.split(": ")[1] for line in lines if "embed_tokens" in line}
    assert embeddings == {"UnquantizedEmbeddingMethod"}
