"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-06-quantization/changes_06.py {scales,zeros,cache}
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from noor import down_inputs, error, matrix, model, rounding_error, with_cache

from mini_vllm.compress.evaluate import HELD_OUT, evaluate, load_documents
from mini_vllm.compress.quantize import quantize_checkpoint
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization.kv_cache import FORMATS
from mini_vllm.model_loader import load_model


def scales() -> None:
    """The rounding error of the guide's matrix in 4 bits, in percent, by what shares a scale."""
    shares = ("tensor", "channel", 64, 32, 16)
    print(*(f"{share} {rounding_error(matrix(1, 'k'), 4, share)}" for share in shares), sep=", ")


def zeros() -> None:
    """What `mini-vllm quantize` makes of the shipped model, in two sizes of groups."""
    documents = load_documents(HELD_OUT, DEFAULT_MODEL)
    for method in ("int4-g32", "int4-g16"):
        with tempfile.TemporaryDirectory() as folder:
            made = quantize_checkpoint(DEFAULT_MODEL, Path(folder) / "made", method)
            lost = evaluate(load_model(Path(folder) / "made"), documents, model())
        print(f"{method}: {made.bits_per_weight:.2f} bits, KL {lost.kl:.4f}")


def cache() -> None:
    """Vectors of 32 numbers through the integer cache: the error, and a text."""
    vectors, form = down_inputs().reshape(-1, 32), FORMATS["int8_per_token_head"]
    off = error(vectors, form.decode(form.encode(vectors, 1.0), 1.0))
    print(f"{off} %:", with_cache("int8_per_token_head", "The batch size")[1])


if __name__ == "__main__":
    {"scales": scales, "zeros": zeros, "cache": cache}[sys.argv[1]]()
