"""The engine's settings, checked once, when they are made.

Mirrors the parts of `vllm/config/{cache,scheduler,model}.py` and `vllm/engine/arg_utils.py` that the
miniature uses, under the same names, in one flat dataclass.

Left out: naming a device, parallelism, LoRA, connectors. `num_gpu_blocks`
keeps its name although the blocks are in ordinary memory here; so does vLLM's CPU backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.config.speculative import SpeculativeConfig

DEFAULT_MODEL = Path(__file__).parents[1] / "checkpoints" / "tiny-llama"
"""The shipped checkpoint."""
DEFAULT_KV_CACHE_BYTES = 128 * 1024**2
KV_CACHE_DTYPES = (
    "auto", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head",
)  # fmt: skip
LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@dataclass(frozen=True)
class EngineConfig:
    """Settings of the scheduler and the KV cache.

    Attributes:
        block_size: tokens in a KV block (`vllm/config/cache.py:45 CacheConfig.DEFAULT_BLOCK_SIZE`:
        16).
        num_gpu_blocks: blocks in the pool, the null block included. None: as many as
            `kv_cache_memory_bytes` holds, decided when the model is known.
        kv_cache_memory_bytes: memory for the KV cache, used only if `num_gpu_blocks` is None. A page of
            it becomes resident when a block is first written, and the free queue goes once round the
            pool before a block is used again: a server grows by all of it, and then no more. None:
            128 MiB, or what one request of `max_model_len` needs if that is more, up to a quarter of the
            memory that is free.
        kv_cache_dtype: how K and V are kept (`vllm/config/cache.py:18`): `auto` in float32, `fp8` and
            `fp8_e4m3` as E4M3, `fp8_e5m2`, and with a scale for each token and head `int8_per_token_head`
            and `fp8_per_token_head` (`layers/quantization/kv_cache.py`). Only `auto` with torch and Triton.
        max_model_len: most tokens in a request, prompt and output. None: the model's own limit.
        max_num_seqs: most requests running at once.
        max_num_batched_tokens: the token budget of a step. None: 4096, or `max_model_len` where
            that is more and chunked prefill is off.
        long_prefill_token_threshold: no request gets more tokens than this in a step; 0: no limit.
        enable_chunked_prefill: a prompt may be computed over several steps.
        enable_prefix_caching: reuse the KV of equal prefixes.
        scheduling_policy: `fcfs` or `priority`.
        scheduler_reserve_full_isl: admit a request only if its whole current sequence fits
            (`vllm/config/scheduler.py:140 SchedulerConfig.scheduler_reserve_full_isl`).
        async_scheduling: plan a step while the one before is computed. Off, as vLLM has it on a CPU
            (`vllm/platforms/cpu.py:135 in CpuPlatform.check_and_update_config`); on a GPU it is on at
            the pin wherever it can be (`vllm/config/vllm.py:935 in VllmConfig.__post_init__`).
        attention: `numpy`, `torch` or `triton`: what computes attention, and with it the model
            (`attention/registry.py`). The last two take a GPU where torch sees one, else the CPU.
        cudagraph_mode: `NONE`, `PIECEWISE`, `FULL`, `FULL_DECODE_ONLY` or `FULL_AND_PIECEWISE`: which
            steps run as CUDA graphs (with numpy: as simulated ones, `cudagraph/`). NONE, as vLLM has it on a
            CPU; on a GPU it is FULL_AND_PIECEWISE at the pin, where the backend can do it
            (`vllm/config/vllm.py:230`).
        cudagraph_capture_sizes: tokens of the batches to capture; None: vLLM's ladder for
            `max_num_seqs`. What is above the token budget is left out.
        speculative_config: what drafts tokens that the model then only checks; None: nothing. A
            dictionary is taken as `SpeculativeConfig.from_dict` takes it.
        stream_interval: tokens that a streamed delta has at least, but for a request's first and last
            (`vllm/config/scheduler.py:151 SchedulerConfig.stream_interval`).
        logprobs_mode: what the logprobs of a sampled token are: `raw_logprobs`, `raw_logits`,
            `processed_logprobs` or `processed_logits` (`sample/sampler.py`).
        logits_processors: classes of your own, or their names as `module:Class`, that change a batch's
            logits (`sample/logits_processor/`).
        max_logprobs: most logprobs a request may ask for; -1: the whole vocabulary.
        seed: of the generator that serves requests without a seed of their own.

    Raises ValueError naming the field, its value and the rule.
    """

    block_size: int = 16
    num_gpu_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    attention: Literal["numpy", "torch", "triton"] = "numpy"
    cudagraph_mode: str = "NONE"
    cudagraph_capture_sizes: Sequence[int] | None = None
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None
    stream_interval: int = 1
    logprobs_mode: str = "raw_logprobs"
    logits_processors: Sequence[str | type[Any]] | None = None
    max_logprobs: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_int("block_size", 1)
        if self.kv_cache_memory_bytes is not None:
            self._check_int("kv_cache_memory_bytes", 1, 2**63 - 1)
        self._check_int("max_num_seqs", 1)
        self._check_int("long_prefill_token_threshold", 0)
        self._check_int("stream_interval", 1)
        self._check_int("max_logprobs", -1)
        self._check_int("seed", 0, 2**64 - 1)
        for name, least in (
            ("num_gpu_blocks", 2),
            ("max_model_len", 1),
            ("max_num_batched_tokens", 1),
        ):
            if getattr(self, name) is not None:
                self._check_int(name, least)
        for name in (
            "enable_chunked_prefill",
            "enable_prefix_caching",
            "scheduler_reserve_full_isl",
            "async_scheduling",
        ):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{name} must be True or False, got {shorten_repr(getattr(self, name))}"
                )
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ValueError(
                f"Unknown scheduling_policy {shorten_repr(self.scheduling_policy)}: use 'fcfs' or "
                "'priority'"
            )
        if self.attention not in ("numpy", "torch", "triton"):
            raise ValueError(
                f"attention must be 'numpy', 'torch' or 'triton', got {shorten_repr(self.attention)}"
            )
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise ValueError(
                f"logprobs_mode must be one of {', '.join(LOGPROBS_MODES)}, got "
                f"{shorten_repr(self.logprobs_mode)}"
            )
        if isinstance(self.logits_processors, str):
            raise ValueError(
                "logits_processors must be a list of classes or names, got "
                f"{shorten_repr(self.logits_processors)}"
            )
        self._check_kv_cache_dtype()
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

        self._check_cudagraphs()
        self._check_speculative()

    def _check_kv_cache_dtype(self) -> None:
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ValueError(
                f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, got "
                f"{shorten_repr(self.kv_cache_dtype)}"
            )
        if self.kv_cache_dtype != "auto" and self.attention != "numpy":
            raise ValueError(
                f"kv_cache_dtype {self.kv_cache_dtype!r} is for attention='numpy': the model of torch "
                f"tensors that attention={self.attention!r} runs keeps K and V in its own dtype"
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
        if self.max_num_scheduled_tokens <= 0:
            raise ValueError(
                f"max_num_batched_tokens ({self.token_budget}) leaves no token to schedule beside one row a "
                f"request for the draft model: with max_num_seqs {self.max_num_seqs} it must be greater"
            )

    def _check_cudagraphs(self) -> None:
        if self.cudagraph_mode not in CUDAGRAPH_MODES:
            raise ValueError(
                f"cudagraph_mode must be one of {', '.join(CUDAGRAPH_MODES)}, got "
                f"{shorten_repr(self.cudagraph_mode)}"
            )
        sizes = self.cudagraph_capture_sizes
        if sizes is None:
            return
        if not isinstance(sizes, list | tuple) or not sizes:
            raise ValueError(
                f"cudagraph_capture_sizes must be a list of at least one size, got {shorten_repr(sizes)}"
            )
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(
                    "a size in cudagraph_capture_sizes must be an integer of at least 1, got "
                    f"{shorten_repr(size)}"
                )
        if min(sizes) > self.token_budget:
            raise ValueError(
                f"cudagraph_capture_sizes ({shorten_repr(list(sizes))}) are all above "
                f"max_num_batched_tokens ({self.token_budget}): no step could use them"
            )

    def _check_int(self, name: str, least: int, most: int = 2**31 - 1) -> None:
        """`most`: positions, lengths and block ids are int32."""
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(
                f"{name} must be an integer of at least {least}, got {shorten_repr(value)}"
            )
        if value > most:
            raise ValueError(
                f"{name} must be an integer of at most {most}, got {shorten_repr(value)}"
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
    def max_num_scheduled_tokens(self) -> int:
        """What the scheduler may give out in a step: the budget, less the rows that drafting adds
        (`vllm/config/vllm.py:1547 in VllmConfig`)."""
        if self.speculation is None:
            return self.token_budget
        return (
            self.token_budget - self.speculation.max_num_new_slots_for_drafting * self.max_num_seqs
        )
