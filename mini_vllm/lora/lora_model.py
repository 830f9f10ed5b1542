"""One adapter's weights, as its folder has them.

Mirrors `vllm/lora/lora_model.py` and `lora_weights.py`. Left out: adapters of experts, and files of pickled
tensors (`adapter_model.bin`): both are refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.config.checks import CheckpointError
from mini_vllm.lora.peft_helper import PEFTHelper
from mini_vllm.model_loader.safetensors_file import StoredTensor, open_safetensors
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array

WEIGHTS_NAME = "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(?:([AB])\.weight|embedding_([AB]))")
_BASE_WEIGHT = re.compile(r".*\.(?:embed_tokens|lm_head)\.base_layer\.weight")
"""PEFT may write the base's own matrix into the file (`vllm/lora/utils.py:199 is_base_embedding_weights`)."""
Shapes = Mapping[str, tuple[int, int]]
"""By the name of a module that may be adapted: numbers of a row that comes in, and of one that goes out."""


@dataclass(frozen=True)
class LoRALayerWeights:
    """The two factors for one module (`vllm/lora/lora_weights.py:13 LoRALayerWeights`).

    Attributes:
        lora_a: float32 `[r, in]`.
        lora_b: float32 `[out, r]`, with the scale already in it
            (`vllm/lora/lora_weights.py:36 LoRALayerWeights.optimize`).
    """

    lora_a: Array
    lora_b: Array


@dataclass(frozen=True)
class LoRAModel:
    """An adapter (`vllm/lora/lora_model.py:60 LoRAModel`).

    Attributes:
        rank: of every pair.
        loras: by the module's name.
        version: 32 bytes that stand for the weights: files that mean the same give the same.
    """

    rank: int
    loras: dict[str, LoRALayerWeights]
    version: bytes

    @property
    def nbytes(self) -> int:
        return sum(pair.lora_a.nbytes + pair.lora_b.nbytes for pair in self.loras.values())

    @classmethod
    def from_local_checkpoint(
        cls, lora_path: Path, modules: Shapes, max_lora_rank: int
    ) -> LoRAModel:
        """Read a folder; what does not fit the model is found before a tensor is read.

        Raises CheckpointError naming the file and what is wrong with it.
        Source: `vllm/lora/lora_model.py:167 LoRAModel.from_local_checkpoint`.
        """
        if not lora_path.is_dir():
            raise CheckpointError(f"{lora_path} is no folder")
        peft_helper = PEFTHelper.from_local_dir(lora_path)
        if peft_helper.r > max_lora_rank:
            raise CheckpointError(
                f"{lora_path}: LoRA rank {peft_helper.r} is greater than max_lora_rank {max_lora_rank}"
            )
        file = lora_path / WEIGHTS_NAME
        pairs = pair_up(file, open_safetensors(file))
        for name, (a, b) in pairs.items():
            if name not in modules:
                raise CheckpointError(
                    f"{file}: the model has no module {shorten_repr(name)} that can be adapted; it has "
                    f"{', '.join(sorted({n.rsplit('.', 1)[-1] for n in modules}))}"
                )
            input_size, output_size = modules[name]
            for stored, due in (
                (a, (peft_helper.r, input_size)),
                (b, (output_size, peft_helper.r)),
            ):
                if stored.shape != due:
                    raise CheckpointError(
                        f"{file}: tensor {shorten_repr(stored.name)} has the shape {list(stored.shape)}, and "
                        f"rank {peft_helper.r} and the model's module ask for {list(due)}"
                    )
        return cls._read(file, pairs, peft_helper)

    @classmethod
    def _read(
        cls,
        file: Path,
        pairs: Mapping[str, tuple[StoredTensor, StoredTensor]],
        peft_helper: PEFTHelper,
    ) -> LoRAModel:
        digest = hashlib.sha256()
        loras: dict[str, LoRALayerWeights] = {}
        scaling = np.float32(peft_helper.scaling)
        for name in sorted(pairs):
            a, b = (np.ascontiguousarray(stored.read(), np.float32) for stored in pairs[name])
            with np.errstate(over="ignore", invalid="ignore"):
                b = b * scaling
            for stored, array in zip(pairs[name], (a, b), strict=True):
                if not np.isfinite(array).all():
                    raise CheckpointError(
                        f"{file}: tensor {shorten_repr(stored.name)} has numbers that are not finite"
                    )
                digest.update(f"{name} {array.shape}\n".encode() + array.tobytes())
            loras[name] = LoRALayerWeights(a, b)
        return cls(peft_helper.r, loras, digest.digest())


def pair_up(
    file: Path, tensors: Mapping[str, StoredTensor]
) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """A and B of each module, by the module's name (`vllm/lora/utils.py:155 parse_fine_tuned_lora_name`).

    Raises CheckpointError for a tensor of another kind, or where one of a pair is missing.
    """
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, stored in tensors.items():
        if _BASE_WEIGHT.fullmatch(name):
            continue
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise CheckpointError(
                f"{file}: tensor {shorten_repr(name)} is no LoRA weight that is supported: only "
                "lora_A.weight, lora_B.weight, lora_embedding_A and lora_embedding_B are"
            )
        halves, half = found.setdefault(match[1], {}), match[2] or match[3]
        if half in halves:
            raise CheckpointError(f"{file}: {shorten_repr(match[1])} has lora_{half} twice")
        halves[half] = stored
    if not found:
        raise CheckpointError(f"{file} has no tensors")
    for module, halves in found.items():
        if len(halves) == 1:
            there = next(iter(halves))
            raise CheckpointError(
                f"{file}: {shorten_repr(module)} has lora_{there} and no lora_{'AB'.replace(there, '')}"
            )
    return {module: (halves["A"], halves["B"]) for module, halves in found.items()}
