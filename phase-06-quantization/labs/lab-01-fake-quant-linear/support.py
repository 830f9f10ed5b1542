"""What the tests of lab 06-01 share: matrices, a layer, and the shipped model with a linear method in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization.config import OnlineQuantizationConfig
from mini_vllm.model_loader import load_config, load_weights
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.tokenizer import Tokenizer


def matrix(rows: int = 96, columns: int = 128, seed: int = 0) -> np.ndarray:
    """Weights as a trained layer has them: about normal, and rows of unlike size."""
    rng = np.random.default_rng(seed)
    sizes = rng.uniform(0.02, 0.2, (rows, 1))
    return read_only((rng.standard_normal((rows, columns)) * sizes).astype(np.float32))


def read_only(array: np.ndarray) -> np.ndarray:
    """The same array, into which nobody writes any more."""
    array.setflags(write=False)
    return array


def layer(lab: Any, weight: np.ndarray) -> Any:
    """A layer of one projection whose weight has been loaded and given to the lab's method."""
    found = SimpleNamespace(
        names=["x"], input_size=weight.shape[1], output_sizes=[len(weight)], weight=weight.copy()
    )
    lab.Int8LinearMethod().process_weights_after_loading(found)
    return found


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """The error's length over what is wanted, over all numbers at once."""
    return float(np.linalg.norm(np.subtract(got, want, dtype=np.float64)) / np.linalg.norm(want))


def model(method: Any) -> LlamaForCausalLM:
    """The shipped checkpoint, its layers' linears kept by `method`; None: as they are."""
    config, weights = load_config(DEFAULT_MODEL), load_weights(DEFAULT_MODEL)
    quantization = None if method is None else OnlineQuantizationConfig(method)
    return LlamaForCausalLM(config, weights, quant_config=quantization)


def linears(of: LlamaForCausalLM) -> list[Any]:
    """The linears of all layers."""
    found: list[Any] = []
    for each in of.layers:
        found += [each.self_attn.qkv_proj, each.self_attn.o_proj]
        found += [each.mlp.gate_up_proj, each.mlp.down_proj]
    return found


def say(of: LlamaForCausalLM, prompt: str, max_tokens: int) -> str:
    """What the engine says behind the prompt, greedily."""
    tokenizer = Tokenizer.from_folder(str(DEFAULT_MODEL))
    engine = LLMEngine(of, EngineConfig(max_num_seqs=1), tokenizer=tokenizer)
    engine.add_request("Noor", prompt, SamplingParams(temperature=0, max_tokens=max_tokens))
    text = ""
    while engine.has_unfinished_requests():
        for output in engine.step():
            text = output.outputs[0].text
    return text
