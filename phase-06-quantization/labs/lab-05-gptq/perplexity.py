"""Given: the whole shipped model in 4 bits, by your `gptq` or the solution's, and a layer with few tokens.

    python perplexity.py                   # by the solution
    python perplexity.py --impl starter    # by yours

Perplexity and KL are over the 96 held-out texts, which nothing has looked at. Nothing here is graded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType

import numpy as np

from course.learner.labs import load_module, load_support
from course.learner.stubs import run_script
from mini_vllm.compress.calibrate import calibrate
from mini_vllm.compress.evaluate import CALIBRATION, HELD_OUT, evaluate, load_documents
from mini_vllm.model_loader import load_model, load_weights
from mini_vllm.models.llama import LlamaForCausalLM

HERE = Path(__file__).resolve().parent
support = load_support(__file__)


def whole_model(lab: ModuleType) -> None:
    """Every linear layer of the four decoder layers, at three group sizes."""
    model = load_model(support.TINY)
    weights = load_weights(support.TINY)
    held_out = load_documents(HELD_OUT, support.TINY)
    inputs = calibrate(model, load_documents(CALIBRATION, support.TINY))
    base = evaluate(model, held_out).perplexity
    print(f"float32: perplexity {base:.4f}\n")
    print("group  method                perplexity   more  KL      same greedy token")
    for group_size in (128, 64, 32):
        made = {
            "round-to-nearest": {
                n: support.nearest(weights[f"{n}.weight"], group_size) for n in inputs
            }
        }
        for name, act_order in (("GPTQ", False), ("GPTQ, act_order", True)):
            made[name] = {
                n: lab.gptq(
                    weights[f"{n}.weight"], inputs[n].hessian, group_size, act_order=act_order
                ).weight()
                for n in inputs
            }
        for name, linears in made.items():
            changed = {f"{n}.weight": w.astype(np.float32) for n, w in linears.items()}
            other = LlamaForCausalLM(model.config, weights | changed)
            found = evaluate(other, held_out, model)
            more = found.perplexity / base - 1
            print(
                f"{group_size:5}  {name:20}  {found.perplexity:10.4f}  {more:5.1%}  {found.kl:.4f}  "
                f"{found.greedy_agreement:.1%}"
            )


def few_tokens(lab: ModuleType) -> None:
    """One layer, groups of 32, H of more and more texts: the outputs' error against round-to-nearest's."""
    name = "model.layers.2.mlp.gate_proj"
    model = load_model(support.TINY)
    weight = load_weights(support.TINY)[f"{name}.weight"].astype(np.float64)
    others = calibrate(model, load_documents(HELD_OUT, support.TINY))[name]
    plain = support.nearest(weight, 32) - weight
    print(f"\n{name}, error of the outputs as a share of round-to-nearest's")
    print("texts  tokens  on these tokens  on the held-out texts")
    for count in (2, 8, 32, 128):
        seen = calibrate(model, load_documents(CALIBRATION, support.TINY, count))[name]
        change = lab.gptq(weight, seen.hessian, 32).weight() - weight
        shares = (
            lab.output_error(change, h) / lab.output_error(plain, h)
            for h in (seen.hessian, others.hessian)
        )
        print("{:5}  {:6,}  {:15.2f}  {:21.2f}".format(count, seen.tokens, *shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    impl = parser.parse_args().impl
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(impl, Path(impl)), "lab_06_05_perplexity")
    whole_model(lab)
    few_tokens(lab)


if __name__ == "__main__":
    run_script(main)
