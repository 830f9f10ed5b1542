"""What the settings of EAGLE heads have beside a Llama's.

A head's `config.json` is a Llama's with one layer. Its architecture is written in several ways, of which
`name_eagle_architecture` makes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mini_vllm.config.checks import CheckpointError, check_no, read_object
from mini_vllm.config.model import LlamaConfig
from mini_vllm.utils.untrusted import shorten_repr


def name_eagle_architecture(name: str, method: str) -> str:
    """`LlamaForCausalLM` is `EagleLlamaForCausalLM` to the method `eagle`, and so on
    (`vllm/transformers_utils/configs/eagle.py:46 in EAGLEConfig.__init__`)."""
    if method == "eagle3":
        if name.startswith("Eagle3") or name.endswith("Eagle3"):
            return name
        return f"Eagle3{name}"
    return name if name.startswith("Eagle") else f"Eagle{name}"


@dataclass(frozen=True)
class EagleLlamaConfig(LlamaConfig):
    """Of the head of `models/llama_eagle.py`."""

    architecture: ClassVar[str] = "EagleLlamaForCausalLM"

    def layer_norm_sizes(self, layer: int) -> Mapping[str, int]:
        """Attention of layer 0 reads its input as it is."""
        norms = dict(super().layer_norm_sizes(layer))
        if layer == 0:
            del norms["input_layernorm.weight"]
        return norms

    def other_tensors(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """Name, shape and whether a file may lack it, of every tensor outside the layers.

        What it lacks is the target's (`vllm/v1/spec_decode/llm_base_proposer.py:1273`).
        """
        hidden = self.hidden_size
        yield "model.fc.weight", (hidden, 2 * hidden), False
        yield "model.embed_tokens.weight", (self.vocab_size, hidden), True
        yield "lm_head.weight", (self.vocab_size, hidden), True


@dataclass(frozen=True)
class Eagle3LlamaConfig(EagleLlamaConfig):
    """Of the head of `models/llama_eagle3.py`.

    Attributes:
        draft_vocab_size: tokens that the head can guess; `vocab_size` where the file does not say.
        aux_hidden_state_layers: whose input the target is asked for; empty: the target's default.
    """

    architecture: ClassVar[str] = "Eagle3LlamaForCausalLM"

    draft_vocab_size: int = 0
    aux_hidden_state_layers: tuple[int, ...] = ()

    @property
    def num_aux_hidden_states(self) -> int:
        """States of the target that `fc` makes one of."""
        return len(self.aux_hidden_state_layers) or 3

    @property
    def qkv_input_size(self) -> int:
        """Attention reads the embedding and the state side by side."""
        return 2 * self.hidden_size

    def layer_norm_sizes(self, layer: int) -> Mapping[str, int]:
        names = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        return {f"{name}.weight": self.hidden_size for name in names}

    def other_tensors(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """As for `EagleLlamaConfig`; the LM head is the draft's own."""
        hidden = self.hidden_size
        yield "model.fc.weight", (hidden, self.num_aux_hidden_states * hidden), False
        yield "model.norm.weight", (hidden,), False
        yield "model.embed_tokens.weight", (self.vocab_size, hidden), True
        yield "lm_head.weight", (self.draft_vocab_size, hidden), False

    def __post_init__(self) -> None:
        if not self.draft_vocab_size:
            object.__setattr__(self, "draft_vocab_size", self.vocab_size)
        super().__post_init__()
        if self.draft_vocab_size > self.vocab_size:
            raise CheckpointError(
                f"draft_vocab_size ({self.draft_vocab_size}) must not be above vocab_size "
                f"({self.vocab_size})"
            )
        if self.num_hidden_layers != 1:
            raise CheckpointError(
                f"num_hidden_layers must be 1 for an EAGLE-3 head, got {self.num_hidden_layers}"
            )

    @classmethod
    def _check_kind(cls, raw: Mapping[str, Any]) -> None:
        super()._check_kind(raw)
        settings = (
            "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "parallel_drafting",
        )  # fmt: skip
        check_no(raw, settings, cls.architecture)
        check_no(read_object(raw, "eagle_config"), settings, cls.architecture)

    @classmethod
    def _values(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        values = super()._values(raw)
        values.pop("aux_hidden_state_layers", None)
        key = "eagle_aux_hidden_state_layer_ids"
        layers = raw.get(key) or read_object(raw, "eagle_config").get(key) or []
        rising = isinstance(layers, list) and all(type(i) is int and i >= 0 for i in layers)
        if not rising or layers != sorted(set(layers)):
            raise CheckpointError(
                f"{key} must be a list of rising layers, got {shorten_repr(layers)}"
            )
        return values | {"aux_hidden_state_layers": tuple(layers)}
