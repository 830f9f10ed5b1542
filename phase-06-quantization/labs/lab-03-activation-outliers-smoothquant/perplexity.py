"""Given: the shipped model in W8A8, with loud channels and smoothed, by your functions or the solution's.

    python perplexity.py                   # by the solution
    python perplexity.py --impl starter    # by yours

In each layer two channels of each norm are made louder, and the columns behind them quieter, so in
float32 it is the same model. Perplexity is over the 96 held-out texts. Nothing here is graded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from course.learner.labs import load_module, load_support
from course.learner.stubs import run_script
from mini_vllm.compress.calibrate import calibrate
from mini_vllm.compress.evaluate import CALIBRATION, HELD_OUT, load_documents, perplexity
from mini_vllm.models.llama import LlamaForCausalLM

HERE = Path(__file__).resolve().parent
support = load_support(__file__)
CHANNELS = [5, 77]
FACTORS = (1, 16, 64, 256)
Weights = dict[str, np.ndarray]


class Rounded:
    """A linear layer in W8A8, by the lab's `w8a8`."""

    def __init__(self, lab: ModuleType, linear: Any) -> None:
        self.lab = lab
        self.weight = linear.weight

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.lab.w8a8(x, self.weight), np.float32)


def in_w8a8(lab: ModuleType, weights: Weights) -> LlamaForCausalLM:
    """The model with every linear layer of its decoder layers in W8A8."""
    model = LlamaForCausalLM(support.model().config, weights)
    for layer in model.layers:
        layer.self_attn.qkv_proj = Rounded(lab, layer.self_attn.qkv_proj)  # type: ignore[assignment]
        layer.self_attn.o_proj = Rounded(lab, layer.self_attn.o_proj)  # type: ignore[assignment]
        layer.mlp.gate_up_proj = Rounded(lab, layer.mlp.gate_up_proj)  # type: ignore[assignment]
        layer.mlp.down_proj = Rounded(lab, layer.mlp.down_proj)  # type: ignore[assignment]
    return model


def change(weights: Weights, how: Any) -> Weights:
    """All norms and the layers behind them, changed by `how(first name, norm, weights)`."""
    changed = dict(weights)
    for i in range(support.model().config.num_hidden_layers):
        prefix = f"model.layers.{i}."
        for norm, linears in (
            ("input_layernorm", [f"self_attn.{p}_proj" for p in "qkv"]),
            ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"]),
        ):
            names = [f"{prefix}{name}" for name in [norm, *linears]]
            tensors = [changed[f"{name}.weight"] for name in names]
            new_norm, new_weights = how(names[1], tensors[0], tensors[1:])
            for name, tensor in zip(names, [new_norm, *new_weights], strict=True):
                changed[f"{name}.weight"] = np.asarray(tensor, np.float32)
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    impl = parser.parse_args().impl
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(impl, Path(impl)), "lab_06_03_perplexity")
    held_out = load_documents(HELD_OUT, support.TINY)
    texts = load_documents(CALIBRATION, support.TINY)
    print("perplexity    float32      W8A8  smoothed, alpha 0.25     0.5    0.75")
    for factor in FACTORS:
        planted = change(
            support.weights(), lambda _, norm, ws, f=factor: lab.plant(norm, ws, CHANNELS, f)
        )
        model = LlamaForCausalLM(support.model().config, planted)
        inputs = calibrate(model, texts)
        line = [perplexity(model, held_out), perplexity(in_w8a8(lab, planted), held_out)]
        for alpha in (0.25, 0.5, 0.75):
            smoothed = change(
                planted,
                lambda name, norm, ws, i=inputs, a=alpha: lab.smooth(norm, ws, i[name].absmax, a),
            )
            line.append(perplexity(in_w8a8(lab, smoothed), held_out))
        print(
            f"{factor:4} times  {line[0]:9.4f} {line[1]:9.4f} {line[2]:21.4f} {line[3]:7.4f} {line[4]:7.4f}"
        )


if __name__ == "__main__":
    run_script(main)
