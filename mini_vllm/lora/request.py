"""How a request names its adapter.

Mirrors `vllm/lora/request.py`. It stands below the core, which carries it and does nothing with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mini_vllm.utils.untrusted import is_text, shorten_repr

if TYPE_CHECKING:
    from mini_vllm.lora.lora_model import LoRAModel


@dataclass(eq=False)
class LoRARequest:
    """An adapter, asked for. Two of one name are equal (`vllm/lora/request.py:8 LoRARequest`).

    Attributes:
        lora_name: what clients call it, and what keeps its cached prefixes apart from others'.
        lora_int_id: its number, from 1 on: no request for an adapter is what asks for the base model.
        lora_path: its folder, as PEFT writes one.
        base_model_name: what it was trained for; nothing is done with it.
        tensorizer_config_dict, is_3d_lora_weight: upstream's, of which only the defaults are taken.
        load_inplace: read the folder again, although an adapter of this name is loaded.

    Raises ValueError naming the field and its value.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    tensorizer_config_dict: dict[str, Any] | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        name, number = self.lora_name, self.lora_int_id
        if not isinstance(name, str) or not name or not is_text(name):
            raise ValueError(
                f"lora_name must be a string that is not empty, got {shorten_repr(name)}"
            )
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"lora_int_id must be an integer, got {shorten_repr(number)}")
        if number < 1:
            raise ValueError(f"lora_int_id: id must be > 0, got {shorten_repr(number)}")
        if not isinstance(self.lora_path, str) or not self.lora_path or "\0" in self.lora_path:
            raise ValueError(
                f"lora_path must be the path of a folder, got {shorten_repr(self.lora_path)}"
            )
        for field_name in ("tensorizer_config_dict", "is_3d_lora_weight"):
            if value := getattr(self, field_name):
                raise ValueError(f"{field_name} {shorten_repr(value)} is not supported")

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


@dataclass(eq=False)
class LoadedLoRARequest(LoRARequest):
    """The same once the adapter is read: what is sent to the core. Not in vLLM, whose worker reads it in a
    step.

    Attributes:
        model: the weights. Whatever happens to the folder, this request is answered with these.
        version: 32 bytes that stand for them (`LoRAModel.version`).
    """

    model: LoRAModel = field(kw_only=True, repr=False)

    @property
    def version(self) -> bytes:
        return self.model.version

    def without_weights(self) -> LoRARequest:
        """What was asked for. An output that is kept must not keep the weights."""
        return LoRARequest(self.lora_name, self.lora_int_id, self.lora_path, self.base_model_name)

    @property
    def slot_key(self) -> tuple[int, bytes]:
        """What occupies a slot. Upstream it is the id alone, so a request that is half done goes on with the
        weights of a reload."""
        return self.lora_int_id, self.model.version

    @property
    def hash_key(self) -> bytes:
        """What the keys of cached blocks hold of it.

        Upstream it is the name alone (`vllm/v1/core/kv_cache_utils.py:462 _gen_lora_extra_hash_keys`), so an
        adapter that is reloaded under its name reads the KV of the one before. 0xFF stands in no UTF-8 text:
        no salt can spell this key.
        """
        return b"\xff" + self.lora_name.encode() + b"\xff" + self.model.version
