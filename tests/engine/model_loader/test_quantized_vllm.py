"""Quantised checkpoints, in `mini_vllm` and in real vLLM on a CPU: the same products, tokens, distributions.

vLLM's CPU build has a kernel for int8 weights and activations in float32. On the same rows each linear gives
the same numbers to the last digit. A whole model does so up to the first activation that lies on the edge
between two codes: there the last digit decides, and from then on two codes differ by one.

For weights of 4 bits its kernel takes 16-bit activations only, float16 here; `mini_vllm` computes in
float32. So what is held is how far the distributions lie apart, against how far quantisation itself has
moved them, and the tokens up to a near tie. For W8A16 and FP8 it has no kernel.

Without AVX-512 it has none for 4 bits, and without VNNI its int8 product is wrong: then those are skipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.compress.evaluate import kl, logprobs
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import load_model
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.quantization.quantized_helpers import Case, cases, write_quantized
from tests.engine.helpers.quantization.quantized_vllm_child import inputs
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of, skip_unless_right

pytestmark = pytest.mark.vllm
TEXTS = (
    "The KV cache stores the keys and values of all tokens that the model has seen.",
    "A block table says where the blocks of a request are.",
    "The scheduler decides",
    "Prefix caching finds the blocks that another request has filled before.",
)
MAX_TOKENS = 40


def layouts() -> dict[str, tuple[Case, str]]:
    """What vLLM's CPU build has a kernel for, and the dtype it is run in. A group of 128 is a row, but for
    `down_proj`."""
    wide, fine = cases(group=128), cases(group=32)
    return {
        "w8a8": (wide["w8a8"], "float32"),
        "w4a16-g128": (wide["w4a16"], "float16"),
        "w4a16-channel": (wide["w4a16-channel"], "float16"),
        "w4a16-asym-g32": (fine["w4a16-asym"], "float16"),
        "awq-g32": (fine["awq"], "float16"),
        "gptq-g128": (wide["gptq"], "float16"),
        "gptq-desc-g32": (fine["gptq-desc"], "float16"),
    }


LAYOUTS = layouts()


@dataclass
class Pair:
    """A case in both engines."""

    folder: Path
    theirs: dict[str, Any]
    ids: list[list[int]]

    def outputs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ours and theirs of each linear of the first layer, on the rows that the child has made."""
        layer = load_model(self.folder).layers[0]
        linears = (
            layer.self_attn.qkv_proj,
            layer.self_attn.o_proj,
            layer.mlp.gate_up_proj,
            layer.mlp.down_proj,
        )
        mine = [linear(inputs(linear.input_size)) for linear in linears]
        return list(zip(mine, map(np.array, self.theirs["outputs"]), strict=True))

    def logprobs(self) -> list[np.ndarray]:
        """Ours, of the prompts' rows that theirs has."""
        model = load_model(self.folder)
        return [logprobs(model, ids)[:-1] for ids in self.ids]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    root = tmp_path_factory.mktemp("quantised")
    tokenizer = Tokenizer.from_folder(str(DEFAULT_MODEL))
    ids = [tokenizer.encode(text, True) for text in TEXTS]
    for name, (case, _) in LAYOUTS.items():
        write_quantized(DEFAULT_MODEL, root / name, case)
    asked = [{"folder": str(root / name), "dtype": dtype} for name, (_, dtype) in LAYOUTS.items()]
    (root / "cases.json").write_text(
        json.dumps({"cases": asked, "prompts": ids, "max_tokens": MAX_TOKENS})
    )
    printed = output_of(
        ROOT / "tests/engine/helpers/quantization/quantized_vllm_child.py", root / "cases.json",
        VLLM_ENABLE_V1_MULTIPROCESSING="0", TORCH_COMPILE_DISABLE="1", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_INT4_W4A8="0",  # a CPU with AMX would round AWQ's activations to 8 bits
    )  # fmt: skip
    results = json.loads(printed.strip().splitlines()[-1])
    return {
        name: Pair(root / name, result, ids) for name, result in zip(LAYOUTS, results, strict=True)
    }


def test_int8_products_agree_to_the_last_digit(pairs: dict[str, Pair]) -> None:
    """The same whole numbers, scaled by the same float32s."""
    skip_unless_right(bits=8)
    assert "error" not in pairs["w8a8"].theirs, pairs["w8a8"].theirs["error"]
    assert pairs["w8a8"].theirs["kernel"] == "CPUInt8ScaledMMLinearKernel"
    for mine, theirs in pairs["w8a8"].outputs():
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=3e-7 * np.abs(theirs).max())


def test_an_int8_model_agrees_until_a_last_digit_decides_a_code(pairs: dict[str, Pair]) -> None:
    """Most rows as close as two float32 models; behind a code that fell to the other side, less."""
    skip_unless_right(bits=8)
    pair = pairs["w8a8"]
    mine, theirs = pair.logprobs(), [np.array(rows) for rows in pair.theirs["logprobs"]]
    rows = np.concatenate([np.abs(a - b).max(axis=1) for a, b in zip(mine, theirs, strict=True)])
    print(
        "w8a8",
        len(rows),
        "rows,",
        int((rows > 5e-5).sum()),
        "behind a code; median",
        np.median(rows),
    )
    assert (rows < 5e-5).mean() > 0.6, f"{(rows < 5e-5).sum()} of {len(rows)} rows agree to 5e-5"
    assert max(map(kl, theirs, mine)) < 2e-3, (
        "a code more or less moves the distribution by so little"
    )
    assert ours(pair) == pair.theirs["tokens"]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "w8a8"])
def test_four_bits_differ_by_float16_alone(name: str, pairs: dict[str, Pair]) -> None:
    """Far nearer to each other than either is to the model that was quantised."""
    skip_unless_right(bits=4)
    pair = pairs[name]
    assert "error" not in pair.theirs, pair.theirs["error"]
    floats = load_model(DEFAULT_MODEL)
    apart, moved = [], []
    for ids, mine, theirs in zip(pair.ids, pair.logprobs(), pair.theirs["logprobs"], strict=True):
        apart.append(kl(mine, np.array(theirs)))
        moved.append(kl(logprobs(floats, ids)[:-1], mine))
    print(name, pair.theirs["method"], pair.theirs["kernel"], "KL", max(apart), "moved", min(moved))
    for a, b in pair.outputs():
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3 * np.abs(b).max())
    assert max(apart) < 2e-5, f"the two engines' distributions lie {max(apart)} nats apart"
    assert max(apart) < min(moved) / 100, f"quantisation moved them by {min(moved)}"
    model = load_model(pair.folder)
    for prompt, mine, theirs in zip(pair.ids, ours(pair), pair.theirs["tokens"], strict=True):
        first = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), None)
        if first is None:
            continue
        row = logprobs(model, [*prompt, *mine[:first]])[-1]
        gap = abs(row[mine[first]] - row[theirs[first]])
        assert gap < 0.05, (
            f"token {first} is {mine[first]} here and {theirs[first]} there, {gap} apart"
        )


def ours(pair: Pair) -> list[list[int]]:
    """Greedy tokens of the prompts, from `mini_vllm`'s engine."""
    from mini_vllm import LLM, SamplingParams

    prompts: Any = [{"prompt_token_ids": prompt} for prompt in pair.ids]
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    outputs = LLM(str(pair.folder)).generate(prompts, params)
    return [list(output.outputs[0].token_ids) for output in outputs]
