"""The engine's settings, checked once, when they are made.

`EngineConfig` is what a user says, `ResolvedConfig` what the engine runs with. Settings stand by subject in
`cache.py`, `scheduler.py`, `compilation.py`, `parallel.py`, `lora.py`, `speculative.py` and
`structured_outputs.py`, as in `vllm/config/`; one flat object has all of them, where upstream's `VllmConfig`
holds one object of each.

Left out: naming a device, connectors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mini_vllm.config.cache import CacheConfig
from mini_vllm.config.checks import check_flag, check_integer, check_one_of
from mini_vllm.config.compilation import CompilationConfig
from mini_vllm.config.parallel import ParallelConfig
from mini_vllm.config.scheduler import RELEASES, SchedulerConfig
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.config.speculative import SpeculativeConfig
    from mini_vllm.config.structured_outputs import StructuredOutputsConfig

DEFAULT_MODEL = Path(__file__).parents[1] / "checkpoints" / "tiny-llama"
"""The shipped checkpoint."""
LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


@dataclass(frozen=True)
class EngineConfig(CacheConfig, SchedulerConfig, CompilationConfig, ParallelConfig):
    """What a user may set; beside these fields, those of the classes that it is made of.

    Attributes:
        max_model_len: most tokens in a request, prompt and output. None: the model's own limit.
        attention: `numpy`, `torch` or `triton`: what computes attention, and with it the model
            (`attention/registry.py`). The last two take a GPU where torch sees one, else the CPU.
        speculative_config: what drafts tokens that the model then only checks; None: nothing. A
            dictionary is taken as `SpeculativeConfig.from_dict` takes it.
        enable_lora: requests may name adapters (`lora/`).
        max_loras: most adapters in a step.
        max_cpu_loras: most adapters that are kept in memory without a request for them; None: `max_loras`.
        max_lora_rank: most that an adapter may have: 1, 8, 16, 32, 64, 128, 256, 320 or 512.
        structured_outputs_config: how requests' rules are compiled, a `StructuredOutputsConfig` or a
            dictionary with its fields; None: as its defaults say.
        logprobs_mode: what the logprobs of a sampled token are: `raw_logprobs`, `raw_logits`,
            `processed_logprobs` or `processed_logits` (`sample/sampler.py`).
        logits_processors: classes of your own, or their names as `module:Class`, that change a batch's
            logits (`sample/logits_processor/`).
        max_logprobs: most logprobs a request may ask for; -1: the whole vocabulary.
        seed: of the generator that serves requests without a seed of their own.

    Raises ValueError naming the field, its value and the rule.
    """

    max_model_len: int | None = None
    attention: Literal["numpy", "torch", "triton"] = "numpy"
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None
    enable_lora: bool = False
    max_loras: int = 1
    max_cpu_loras: int | None = None
    max_lora_rank: int = 16
    structured_outputs_config: StructuredOutputsConfig | Mapping[str, Any] | None = None
    logprobs_mode: str = "raw_logprobs"
    logits_processors: Sequence[str | type[Any]] | None = None
    max_logprobs: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_cache()
        self._check_scheduler()
        self._check_parallel()
        check_integer("max_logprobs", self.max_logprobs, -1)
        check_integer("seed", self.seed, 0, 2**64 - 1)
        if self.max_model_len is not None:
            check_integer("max_model_len", self.max_model_len, 1)
        if self.attention not in ("numpy", "torch", "triton"):
            raise ValueError(
                f"attention must be 'numpy', 'torch' or 'triton', got {shorten_repr(self.attention)}"
            )
        check_one_of("logprobs_mode", self.logprobs_mode, LOGPROBS_MODES)
        if isinstance(self.logits_processors, str):
            raise ValueError(
                "logits_processors must be a list of classes or names, got "
                f"{shorten_repr(self.logits_processors)}"
            )
        if self.kv_cache_dtype != "auto" and self.attention != "numpy":
            raise ValueError(
                f"kv_cache_dtype {self.kv_cache_dtype!r} is for attention='numpy': the model of torch "
                f"tensors that attention={self.attention!r} runs keeps K and V in its own dtype"
            )
        self._check_token_budget()
        self._check_compilation(self.token_budget)
        self._check_speculative()
        if self.structured_outputs_config is not None:
            from mini_vllm.config.structured_outputs import StructuredOutputsConfig

            asked = StructuredOutputsConfig.of(self.structured_outputs_config)
            object.__setattr__(self, "structured_outputs_config", asked)
        check_flag("enable_lora", self.enable_lora)
        if self.enable_lora:
            from mini_vllm.config.lora import check_lora

            check_lora(self)

    def _check_token_budget(self) -> None:
        budget = self.token_budget
        if budget < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({budget}) must be greater than or equal to "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        if not self.enable_chunked_prefill and budget < (self.max_model_len or 0):
            raise ValueError(
                f"max_num_batched_tokens ({budget}) is smaller than max_model_len "
                f"({self.max_model_len}), and without chunked prefill a longer prompt could never "
                "be scheduled: raise the first, lower the second, or enable chunked prefill"
            )

    def _check_speculative(self) -> None:
        if self.speculative_config is None:
            return
        from mini_vllm.config.speculative import SpeculativeConfig

        if isinstance(self.speculative_config, Mapping):
            checked = SpeculativeConfig.from_dict(self.speculative_config)
            object.__setattr__(self, "speculative_config", checked)
        elif not isinstance(self.speculative_config, SpeculativeConfig):
            raise ValueError(
                f"speculative_config must be a dictionary, got {shorten_repr(self.speculative_config)}"
            )
        speculation = self.speculation
        assert speculation is not None
        if self.async_scheduling and speculation.method == "ngram":
            raise ValueError(
                "async_scheduling goes with speculation by EAGLE heads and draft models only, got method "
                "'ngram': it reads tokens that are still in flight"
            )
        padded = 1 + speculation.num_spec_tokens
        pads = RELEASES.index(self.rules) >= RELEASES.index("0.25.0")
        if pads and 0 < self.long_prefill_token_threshold < padded:
            raise ValueError(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) must be 0 or at least "
                f"1 + num_speculative_tokens ({padded}) with rules {self.rules!r}: from 0.25.0 on vLLM pads "
                "requests to that many tokens, and then cuts them (vllm-project/vllm pull request 54028)"
            )
        if self.max_num_scheduled_tokens <= 0:
            raise ValueError(
                f"max_num_batched_tokens ({self.token_budget}) leaves no token to schedule beside one row a "
                f"request for the draft model: with max_num_seqs {self.max_num_seqs} it must be greater"
            )

    @property
    def token_budget(self) -> int:
        """`max_num_batched_tokens`, resolved."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        least = 4096 if self.enable_chunked_prefill else max(4096, self.max_model_len or 0)
        return max(least, self.max_num_seqs)

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """`speculative_config`, once checked."""
        assert not isinstance(self.speculative_config, Mapping)
        return self.speculative_config

    @property
    def structured_outputs(self) -> StructuredOutputsConfig | None:
        """`structured_outputs_config`, once checked."""
        assert not isinstance(self.structured_outputs_config, Mapping)
        return self.structured_outputs_config

    @property
    def num_cpu_loras(self) -> int:
        """`max_cpu_loras`, resolved (`vllm/config/lora.py:110 in LoRAConfig`)."""
        return self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras

    @property
    def max_num_scheduled_tokens(self) -> int:
        """What the scheduler may give out in a step: the budget, less the rows that drafting adds
        (`vllm/config/vllm.py:1547 in VllmConfig`)."""
        if self.speculation is None:
            return self.token_budget
        return (
            self.token_budget - self.speculation.max_num_new_slots_for_drafting * self.max_num_seqs
        )


@dataclass(frozen=True)
class ResolvedConfig(EngineConfig):
    """`EngineConfig` with what depends on the model decided: neither of these is None.

    Upstream fills in the fields of its `VllmConfig`
    (`vllm/v1/engine/core.py:235 EngineCore._initialize_kv_caches`).
    """

    num_gpu_blocks: int = field(kw_only=True)
    max_model_len: int = field(kw_only=True)

    @classmethod
    def of(cls, config: EngineConfig) -> ResolvedConfig:
        """The same settings, of which both are set. Raises ValueError naming one that is not."""
        if isinstance(config, ResolvedConfig):
            return config
        for name in ("num_gpu_blocks", "max_model_len"):
            if getattr(config, name) is None:
                raise ValueError(
                    f"{name} is not decided: it depends on the model, and is None here"
                )
        return cls(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})
