"""Noor's card on paper, and what the shipped model shows of grids and scales: set-up for the pages.

On paper the model is Llama-3.1-8B and the card an L4, whose figures are those of phase 00, lab 04. What is
run is the tiny Llama that comes with the engine.

The pages import this module by its name: start Python in this folder.

    python phase-06-quantization/noor.py              Noor's card on paper
    python phase-06-quantization/noor.py quality      measure every grid and method: writes quality.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import LLM, SamplingParams
from mini_vllm.compress.calibrate import LayerInput, calibrate
from mini_vllm.compress.evaluate import (
    CALIBRATION,
    HELD_OUT,
    Evaluation,
    evaluate,
    load_documents,
)
from mini_vllm.compress.gptq import gptq
from mini_vllm.compress.quantize import quantize_checkpoint
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization.float_formats import (
    decode_mxfp4,
    decode_nvfp4,
    encode_mxfp4,
    encode_nvfp4,
)
from mini_vllm.layers.quantization.grid import QuantArgs, round_to_nearest
from mini_vllm.layers.quantization.scaled import quantize_per_token_int8
from mini_vllm.model_loader import load_config, load_model, load_weights
from mini_vllm.models.llama import LlamaForCausalLM

HERE = Path(__file__).resolve().parent
SHEETS: dict[str, dict[str, Any]] = {
    sheet["name"]: sheet
    for folder in HERE.parent.glob("phase-00-*/labs/lab-04-*")
    for sheet in json.loads((folder / "gpus.json").read_text("utf-8"))
}
GB = 1e9
Array = NDArray[np.float32]

# --- on paper ---

LINEARS = 6_979_321_856
"""Weights of Llama-3.1-8B in the linears of its 32 layers."""
HEAD = 128_256 * 4096
"""Weights of its last matrix. The embedding has as many, and of that a step looks up a row for each token."""
REST = 8_030_261_248 - LINEARS
"""Embedding, last matrix and norms, which stay in 16 bits."""
TOKEN_BYTES = 2 * 2 * 32 * 8 * 128
"""What the KV cache keeps of a token in 16 bits: keys and values, 32 layers, 8 heads of 128."""


@dataclass(frozen=True)
class Card:
    """A GPU at its best: dense `flops` in 16 bits and `bandwidth` bytes, a second; `memory` bytes."""

    flops: float
    bandwidth: float
    memory: float


def card(name: str) -> Card:
    """A card from the data sheets of phase 00, where a figure "with sparsity" is halved."""
    sheet = SHEETS[name]
    dense = sheet["printed_tflops"] / (2 if sheet["with_sparsity"] else 1)
    return Card(dense * 1e12, sheet["bandwidth_gb_s"] * 1e9, sheet["memory_gb"] * GB)


L4 = card("L4")


def bits_per_weight(bits: int, group: int | None = None, scale_bits: int = 16) -> float:
    """Bits that a weight takes with its share of the scale.

    Args:
        bits: of a code.
        group: weights that share a scale; None for so many that it does not count.
        scale_bits: of a scale.
    """
    return bits + (scale_bits / group if group else 0)


def weight_bytes(bits: float = 16) -> float:
    """Bytes of Llama-3.1-8B with so many bits a weight in its linear layers."""
    return LINEARS * bits / 8 + 2 * REST


def people(bits: float = 16, tokens: int = 2000, kv_bits: int = 16) -> int:
    """Conversations of so many tokens that fit beside the weights, in 0.92 of Noor's card, vLLM's default."""
    left = 0.92 * L4.memory - weight_bytes(bits)
    return int(left // (tokens * TOKEN_BYTES * kv_bits / 16))


def step_ms(
    rows: int = 1,
    bits: float = 16,
    fast: bool = False,
    context: int = 0,
    sampled: int | None = None,
    kv_bits: int = 16,
) -> float:
    """Milliseconds of a step on Noor's card, on paper.

    The linears, the last matrix and the reading of the cache come one after the other, and each takes as long
    as it reads or as it computes, whichever is longer. (Lab 06-08 works this out with more care.)

    Args:
        rows: tokens that the step computes.
        bits: of a weight of the linears.
        fast: whether these multiply in 8 bits, of which the card does twice as many as in 16.
        context: tokens in the cache that each row of a decode attends to.
        sampled: rows of which a token is chosen; all of them where it is not said.
        kv_bits: of a number in the cache.
    """
    sampled = rows if sampled is None else sampled
    linears = max(
        LINEARS * bits / 8 / L4.bandwidth, 2 * LINEARS * rows / L4.flops / (2 if fast else 1)
    )
    head = max(2 * HEAD / L4.bandwidth, 2 * HEAD * sampled / L4.flops) if sampled else 0
    attention = sampled * context * TOKEN_BYTES * kv_bits / 16 / L4.bandwidth
    return 1e3 * (linears + head + attention)


def steps_ms(tokens: int) -> list[float]:
    """`step_ms` in 16 bits, in 4 with weights alone, in 8 on both sides; at most 64 rows give a token."""
    shapes = ((16, False), (bits_per_weight(4, 128), False), (8, True))
    return [round(step_ms(tokens, bits, fast, sampled=min(tokens, 64)), 1) for bits, fast in shapes]


def compare_steps(*loads: tuple[int, float, int]) -> None:
    """Print what a step of decode takes, with 2,000 tokens in the cache for each person, one load a line.

    Args:
        loads: people, bits of a weight of the linears, bits of a number in the cache.
    """
    print("people  weight bits  cache bits  weights ms  cache ms  step ms")
    for rows, bits, kv_bits in loads:
        weights = step_ms(rows, bits)
        step = step_ms(rows, bits, context=2000, kv_bits=kv_bits)
        times = f"{weights:12.1f}{step - weights:10.1f}{step:9.1f}"
        print(f"{rows:6}{bits:13g}{kv_bits:12}{times}")


def tokens_per_second(bits: float = 16) -> float:
    """What Noor can have at most when she is alone."""
    return round(1e3 / step_ms(bits=bits), 1)


# --- the shipped model ---


@cache
def weights() -> dict[str, Array]:
    """Every tensor of the shipped checkpoint."""
    return dict(load_weights(DEFAULT_MODEL))


def matrix(layer: int, name: str) -> Array:
    """The weight of one projection, `[out, in]`: `matrix(1, "k")`."""
    part = "self_attn" if name in "qkvo" else "mlp"
    return weights()[f"model.layers.{layer}.{part}.{name}_proj.weight"]


def grid(bits: int, share: str | int, symmetric: bool = True) -> QuantArgs:
    """Whole numbers of so many bits.

    Args:
        share: "tensor" or "channel", or how many neighbours in a row share a scale.
    """
    if isinstance(share, int):
        return QuantArgs(bits, "int", symmetric, "group", share)
    return QuantArgs(bits, "int", symmetric, "channel" if share == "channel" else "tensor")


def error(weight: Array, rounded: Array) -> float:
    """How far `rounded` is from `weight`, as a share of it (root of the sums of squares), in per cent."""
    return round(100 * float(np.linalg.norm(rounded - weight) / np.linalg.norm(weight)), 1)


def rounding_error(weight: Array, bits: int, share: str | int, symmetric: bool = True) -> float:
    """What rounding to the nearest does to a matrix, in per cent."""
    return error(weight, round_to_nearest(weight, grid(bits, share, symmetric)).dequantize())


def in_float8(weight: Array) -> Array:
    """E4M3 with a scale for each row."""
    return round_to_nearest(weight, QuantArgs(8, "float", strategy="channel")).dequantize()


def in_mxfp4(weight: Array) -> Array:
    return decode_mxfp4(*encode_mxfp4(weight))


def in_nvfp4(weight: Array) -> Array:
    return decode_nvfp4(*encode_nvfp4(weight))


@cache
def model() -> LlamaForCausalLM:
    """The shipped model, unquantised."""
    return LlamaForCausalLM(load_config(DEFAULT_MODEL), weights())


@cache
def seen() -> dict[str, LayerInput]:
    """What each linear got as its input from 32 documents of the calibration text."""
    return calibrate(model(), load_documents(CALIBRATION, DEFAULT_MODEL, limit=32))


@cache
def unseen() -> dict[str, LayerInput]:
    """The same of 32 held-out documents, which no method may look at."""
    return calibrate(model(), load_documents(HELD_OUT, DEFAULT_MODEL, limit=32))


MATRICES = [
    (layer, name) for layer in range(4) for name in ("q", "k", "v", "o", "gate", "up", "down")
]
"""The shipped model's projections, as `matrix` takes them."""


def nearest_and_gptq(layer: int, name: str, group: int = 128) -> tuple[tuple[float, float], ...]:
    """Percent by which a projection's weights are off, and its output: rounded to the nearest, and by GPTQ.

    GPTQ is calibrated on `seen`; the output is measured on `unseen`.

    Returns:
        (weights, output) of either.
    """
    weight, args = matrix(layer, name), grid(4, group)
    part = "self_attn" if name in "qkvo" else "mlp"
    full_name = f"model.layers.{layer}.{part}.{name}_proj"
    into = unseen()[full_name]
    pairs = []
    for made in (
        round_to_nearest(weight, args),
        gptq(weight, seen()[full_name].hessian, args),
    ):
        rounded = made.dequantize()
        output = (into.error(rounded - weight) / into.error(weight)) ** 0.5
        pairs.append((error(weight, rounded), round(100 * output, 2)))
    return tuple(pairs)


SENTENCE = (
    "A block table leads from a request to its blocks. The scheduler decides which requests run."
)


@cache
def down_inputs() -> Array:
    """`[tokens, 384]`: what the first layer's down_proj gets as its input for one sentence."""
    ids = [1, *(8 + byte for byte in SENTENCE.encode())]  # <bos>, then a token a byte
    rows = calibrate(model(), [ids])["model.layers.0.mlp.down_proj"].rows
    assert len(rows) == len(ids)
    return rows


def token_error(share: str) -> float:
    """What rounding to 8 bits does to these inputs: the median token's error, in percent.

    Args:
        share: "tensor", one scale for all of them, or "token", one for each.
    """
    rows = down_inputs()
    if share == "tensor":
        rounded = round_to_nearest(rows, grid(8, "tensor")).dequantize()
    else:
        codes, scale = quantize_per_token_int8(rows)
        rounded = codes * scale
    off = np.linalg.norm(rounded - rows, axis=1) / np.linalg.norm(rows, axis=1)
    return round(100 * float(np.median(off)), 1)


def with_cache(kv_cache_dtype: str, prompt: str = "The KV cache") -> tuple[int, str]:
    """Blocks that 10 MB of cache come to in the shipped engine, and what it says then, greedily.

    30 tokens: of the page's first prompt the integer cache changes the 32nd, on some processors alone.
    """
    llm = LLM(kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=10_000_000)
    blocks = llm.llm_engine.config.num_gpu_blocks
    assert blocks is not None
    [output] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=30))
    return blocks, output.outputs[0].text.strip()


# --- what it costs in quality ---

QUALITY = HERE / "quality.json"


@dataclass(frozen=True)
class Measured:
    """The shipped model with its linears on one grid, on the 96 held-out documents.

    Attributes:
        bits: of a weight, scales included (16 bits each; in 4-bit floats those of the format).
        error: of all weights of the linears, per cent; None where a method has changed them first.
        perplexity, kl, agreement: see `mini_vllm.compress.evaluate`.
    """

    name: str
    bits: float
    error: float | None
    perplexity: float
    kl: float
    agreement: float


def _rounded(weight: Array, args: QuantArgs) -> Array:
    return round_to_nearest(weight, args).dequantize()


def _grids() -> Iterator[tuple[str, float, Callable[[Array], Array]]]:
    for bits in (8, 4, 3):
        for share in ("tensor", "channel", 128, 64, 32, 16):
            size = share if isinstance(share, int) else None
            args = replace(grid(bits, share), scale_dtype="float16")  # as a checkpoint stores it
            yield f"int{bits} {share}", bits_per_weight(bits, size), partial(_rounded, args=args)
    yield "fp8 channel", 8, in_float8
    yield "mxfp4 32", bits_per_weight(4, 32, 8), in_mxfp4
    yield "nvfp4 16", bits_per_weight(4, 16, 8), in_nvfp4


METHODS = {
    "int8": 8, "w8a8": 8, "smoothquant-w8a8": 8, "fp8": 8, "int4-g128": 4.125, "int4-g32": 4.5,
    "gptq-g128": 4.125, "gptq-g32": 4.5, "awq-g128": 4.15625, "awq-g32": 4.625,
}  # fmt: skip
"""What `mini-vllm quantize` makes, and bits of a weight with its share of scale and zero point."""


def measure() -> Iterator[Measured]:
    """Every grid, rounded to the nearest, then every method of the command. Takes minutes."""
    config, before = load_config(DEFAULT_MODEL), weights()
    documents = load_documents(HELD_OUT, DEFAULT_MODEL)
    reference = LlamaForCausalLM(config, before)
    linears = [name for name in before if name.endswith("_proj.weight")]

    def entry(name: str, bits: float, off: float | None, found: Evaluation) -> Measured:
        rounded = (
            round(value, 5) for value in (found.perplexity, found.kl, found.greedy_agreement)
        )
        return Measured(name, bits, off, *rounded)

    yield entry("float32", 32, 0, evaluate(reference, documents))
    for name, bits, rounds in _grids():
        after = before | {each: rounds(before[each]) for each in linears}
        both = [np.concatenate([of[each].ravel() for each in linears]) for of in (before, after)]
        found = evaluate(LlamaForCausalLM(config, after), documents, reference)
        yield entry(name, bits, error(*both), found)
    for method, bits in METHODS.items():
        with tempfile.TemporaryDirectory() as folder:
            quantize_checkpoint(DEFAULT_MODEL, Path(folder) / "made", method)
            model = load_model(Path(folder) / "made")
        yield entry(method, bits, None, evaluate(model, documents, reference))


@cache
def quality() -> dict[str, Measured]:
    """What was measured, by name, from quality.json."""
    return {one["name"]: Measured(**one) for one in json.loads(QUALITY.read_text("utf-8"))}


def gptq_perplexity(texts: list[str]) -> float:
    """Perplexity of the shipped model in 4 bits by GPTQ, groups of 128, calibrated on these texts."""
    with tempfile.TemporaryDirectory() as folder:
        calibration = Path(folder) / "texts.json"
        calibration.write_text(json.dumps(texts), "utf-8")
        quantize_checkpoint(
            DEFAULT_MODEL, Path(folder) / "made", "gptq-g128", calibration=calibration
        )
        made = load_model(Path(folder) / "made")
    return evaluate(made, load_documents(HELD_OUT, DEFAULT_MODEL)).perplexity


def compare(*names: str) -> None:
    """Print what was measured of these, one a line."""
    print(f"{'':12}{'bits':>7}{'perplexity':>12}{'KL':>8}{'agreement':>11}")
    for name in names:
        it = quality()[name]
        print(f"{name:12}{it.bits:7.3f}{it.perplexity:12.4f}{it.kl:8.4f}{it.agreement:11.1%}")


def main() -> None:
    if sys.argv[1:] == ["quality"]:
        found = []
        for one in measure():
            found.append(vars(one))
            print(f"{one.name:18}perplexity {one.perplexity:.4f}  KL {one.kl:.4f}", flush=True)
        lines = ",\n".join(json.dumps(one) for one in found)
        QUALITY.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")
        return
    for name, bits in (("16 bits", 16.0), ("8", 8.0), ("4 and a scale for 128", 4.125)):
        print(
            f"{name}: {weight_bytes(bits) / GB:.2f} GB, {step_ms(bits=bits):.1f} ms a token, "
            f"{people(bits)} people with 2,000 tokens each"
        )


if __name__ == "__main__":
    main()
