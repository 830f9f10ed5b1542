"""What the engine asks of a model, whichever family it is of, in numpy or in torch.

Mirrors `vllm/model_executor/models/interfaces_base.py`. Left out: models that pool, and how a
class is told to be of either kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mini_vllm.config.model import LlamaConfig


class ModelForTextGeneration(Protocol):
    """A model that is loaded. Its arrays, and what tells attention of a step, are
    numpy's or torch's: that is what `Any` stands for here.

    Source: `vllm/model_executor/models/interfaces_base.py:114 VllmModelForTextGeneration`.

    Attributes:
        config: its checked configuration.
        attention: its backend (`attention/backend.py`).
        layers: its decoder layers, each with its `self_attn`.
        aux_hidden_state_layers: of these layers, an EAGLE-3 head wants the input.
    """

    config: LlamaConfig
    attention: Any
    aux_hidden_state_layers: tuple[int, ...]

    @property
    def layers(self) -> Sequence[Any]: ...

    def set_max_model_len(self, max_model_len: int) -> None:
        """Say how long a text may be, prompt and output."""
        ...

    def forward(
        self, input_ids: Any, positions: Any, kv_caches: list[Any], attn_metadata: Any
    ) -> Any:
        """Hidden states `[n, hidden_size]` of one flat batch; writes its K and V into `kv_caches`."""
        ...

    def lend_embed_tokens(self) -> Any:
        """The embedding, `[vocab_size, hidden_size]`, for a drafter whose checkpoint has none."""
        ...

    def lend_lm_head(self) -> Any:
        """The LM head, likewise."""
        ...

    def get_eagle3_default_aux_hidden_state_layers(self) -> tuple[int, ...]:
        """`aux_hidden_state_layers` for a head that names none
        (`vllm/model_executor/models/interfaces.py:1370`)."""
        ...

    def compute_logits(self, hidden_states: Any) -> Any:
        """`[n, vocab_size]` from hidden states `[n, hidden_size]`."""
        ...
