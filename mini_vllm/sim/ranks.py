"""What a step costs on several cards: a rank's share of the roofline, and what the ranks say to each other.

    cost = make_ranked_cost("llama-3-70b", "h100", tensor_parallel_size=4, pipeline_parallel_size=2)
    cost.num_kv_tokens       slots of the KV cache, from the memory that is left on the fullest card
    cost.device(work)        seconds of a step from end to end
    cost.stage_times(work)   of each stage: seconds that it is busy, and that its hand-over takes

A rank reads its share of the weights and of K and V, and does its share of the operations; where there are
more ranks than KV heads, each has one, and some have the same. What it says follows from the model, as the
engine's ledger counts it (`rank_calls`); `collectives.py` prices each call. A step goes through the stages in
turn, and the simulator keeps as many steps in flight as there are stages.

Left out: activations, CUDA graphs and NCCL's buffers in memory (`reserved_bytes` takes a number of yours),
all that hides communication behind computing, mixtures of experts, windows, quantised weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mini_vllm.config.checks import check_integer
from mini_vllm.config.model import LlamaConfig
from mini_vllm.config.moe import MoeConfig
from mini_vllm.distributed.parallel_state import get_pp_indices
from mini_vllm.model_loader.shards import (
    check_tensor_parallel,
    get_rank_config,
    padded_vocab_size,
)
from mini_vllm.model_loader.stages import check_pipeline_parallel
from mini_vllm.models.registry import read_config
from mini_vllm.sim.collectives import all_gather_s, all_reduce_s
from mini_vllm.sim.cost import RooflineCost, StageTime, StepWork
from mini_vllm.sim.hardware import Card, Link, get_card, get_link, model_title, models
from mini_vllm.utils.untrusted import shorten_repr

BYTES = 2
"""Of a number: weights, K and V, and what is sent are in 16 bits."""
GPU_MEMORY_UTILIZATION = 0.92
"""Source: `vllm/config/cache.py:66 CacheConfig.gpu_memory_utilization`."""

Calls = Counter[tuple[str, tuple[int, ...], int]]
"""How often, by kind of call, shape and bytes, as `distributed.communicator.Ledger.calls`."""


class RankCalls(NamedTuple):
    """What a rank says in a step: to those that share its layers, and to the stage behind."""

    tensor: Calls
    pipeline: Calls


def rank_calls(
    config: LlamaConfig,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    stage: int,
    num_tokens: int,
    num_rows: int,
    itemsize: int = BYTES,
) -> RankCalls:
    """What a rank of this stage says in one step.

    Args:
        config: the whole model's.
        num_tokens: of the step.
        num_rows: of logits: one a request. (The engine here gives a prompt that is not finished in the step
            none; vLLM gives it one.)
        itemsize: bytes of a number; the engine's are float32.
    """
    size, hidden = tensor_parallel_size, config.hidden_size
    layers = len(get_pp_indices(config.num_hidden_layers, stage, pipeline_parallel_size))
    is_first, is_last = stage == 0, stage == pipeline_parallel_size - 1
    numbers = num_tokens * hidden
    share = (numbers // size,) if numbers % size == 0 else (num_tokens, hidden)
    tensor: Calls = Counter()
    pipeline: Calls = Counter()
    if not is_last:  # hidden states and residual, of which each rank sends its share
        pipeline["send", share, _count(share) * itemsize] = 2
    if size > 1:
        tensor["all_reduce", (num_tokens, hidden), numbers * itemsize] = 2 * layers + is_first
        if not is_first and numbers % size == 0:
            tensor["all_gather", share, _count(share) * itemsize] = 2
        if is_last and num_rows:
            logits = (num_rows, padded_vocab_size(config.vocab_size) // size)
            tensor["all_gather", logits, _count(logits) * itemsize] = 1
    return RankCalls(tensor, pipeline)


def _count(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == 1 else shape[0] * shape[1]


def rank_params(
    config: LlamaConfig, tensor_parallel_size: int, pipeline_parallel_size: int, stage: int
) -> int:
    """Weights that a rank of this stage has, the vocabulary's padding included."""
    mine = get_rank_config(config, tensor_parallel_size)
    total = 0
    for layer in get_pp_indices(config.num_hidden_layers, stage, pipeline_parallel_size):
        total += sum(out * inp + out * bias for _, out, inp, bias in mine.linears(layer))
        total += sum(mine.layer_norm_sizes(layer).values())
    table = padded_vocab_size(config.vocab_size) // tensor_parallel_size * config.hidden_size
    is_first, is_last = stage == 0, stage == pipeline_parallel_size - 1
    shared = config.tie_word_embeddings and is_first and is_last
    return total + table * (is_first + is_last - shared) + config.hidden_size * is_last


@dataclass(frozen=True)
class RankedCost:
    """A `StepCost` of a model on `tensor_parallel_size` x `pipeline_parallel_size` cards. Made by
    `make_ranked_cost`; on one card its figures are those of `stages[0]`.

    Attributes:
        stages: the roofline of one rank of each stage.
        link: between the ranks of a stage; `pipeline_link`: from stage to stage.
    """

    name: str
    source: str
    config: LlamaConfig
    card: Card
    link: Link
    pipeline_link: Link
    tensor_parallel_size: int
    stages: tuple[RooflineCost, ...]
    num_kv_tokens: int
    max_model_len: int
    add_request_s: float = 0.0
    scatter: tuple[float, ...] = ()

    @property
    def pipeline_parallel_size(self) -> int:
        return len(self.stages)

    def host(self, work: StepWork) -> float:
        """Nothing, as with one card."""
        return 0.0

    def launching(self, work: StepWork) -> float:
        """Nothing, likewise."""
        return 0.0

    def device(self, work: StepWork) -> float:
        """From the first stage's begin to the last one's end."""
        return sum([busy + hand_over for busy, hand_over in self.stage_times(work)])

    def communication(self, work: StepWork) -> float:
        """Of these seconds, those in which the ranks speak instead of computing."""
        if not work.num_tokens:
            return 0.0
        return self.device(work) - sum([stage.device(work) for stage in self.stages])

    def stage_times(self, work: StepWork) -> list[StageTime]:
        """Stage by stage. A step without tokens takes no time."""
        if not work.num_tokens:
            return [StageTime(0.0, 0.0)] * len(self.stages)
        times = []
        for index, stage in enumerate(self.stages):
            calls = self.calls(index, work)
            said = sum([count * self._price(*key) for key, count in calls.tensor.items()])
            sent = sum(
                [n * self.pipeline_link.send_s(size) for (_, _, size), n in calls.pipeline.items()]
            )
            times.append(StageTime(stage.device(work) + said, sent))
        return times

    def calls(self, stage: int, work: StepWork) -> RankCalls:
        """What a rank of this stage says in a step with this work."""
        sizes = self.tensor_parallel_size, self.pipeline_parallel_size
        return rank_calls(self.config, *sizes, stage, work.num_tokens, work.num_reqs)

    def _price(self, kind: str, shape: tuple[int, ...], nbytes: int) -> float:
        size = self.tensor_parallel_size
        if kind == "all_reduce":
            return all_reduce_s(self.card, self.link, size, nbytes)
        return all_gather_s(self.link, size, nbytes)


def make_ranked_cost(
    model: str | LlamaConfig | Mapping[str, Any],
    card: str | Card,
    link: str | Link | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    pipeline_link: str | Link | None = None,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
    reserved_bytes: int = 0,
) -> RankedCost:
    """What a step of the model takes on so many cards of a kind, in 16 bits.

    Args:
        model: a name of `hardware.models()`, settings, or the content of a `config.json`.
        card: a name of `hardware.cards()`, or a card.
        link: between the ranks of a stage: `nvlink`, `pcie`, a name of `hardware.links()`, with figures of
            your own behind it (`get_link`), or a link. None: the card's best.
        pipeline_link: from stage to stage; None: as `link`.
        gpu_memory_utilization: of a card's memory, the share that the engine takes.
        reserved_bytes: of this, what activations, graphs and buffers take.

    Raises ValueError, naming the setting, for what does not go together: a model that cannot be cut so (as
    the engine does), one of a kind that is not priced here, and weights that leave no room for one token of
    K and V on some card.
    """
    title = "a model of your own"
    if isinstance(model, str):
        if model not in models():
            raise ValueError(f"unknown model {shorten_repr(model)}: one of {', '.join(models())}")
        title, config = model_title(model), models()[model]
    else:
        config = model if isinstance(model, LlamaConfig) else read_config(dict(model))
    card = get_card(card)
    link = get_link(link, card)
    pipeline_link = link if pipeline_link is None else get_link(pipeline_link, card)
    tp, pp = tensor_parallel_size, pipeline_parallel_size
    _check(config, tp, pp, gpu_memory_utilization, reserved_bytes)
    sheet = f"{card.flops / 1e12:g} TFLOP/s, {card.bandwidth / 1e9:,.0f} GB/s"
    mine = get_rank_config(config, tp)
    stages = []
    for stage in range(pp):
        layers = len(get_pp_indices(config.num_hidden_layers, stage, pp))
        params = rank_params(config, tp, pp, stage)
        kv_bytes = 2 * layers * mine.num_key_value_heads * mine.head_dim * BYTES
        usable = gpu_memory_utilization * card.memory_bytes - reserved_bytes
        slots = int((usable - BYTES * params) / kv_bytes)
        if slots < 1:
            raise ValueError(
                f"{title} with tensor_parallel_size {tp} and pipeline_parallel_size {pp} does not fit: a "
                f"rank of stage {stage} has {BYTES * params / 1e9:.1f} GB of weights, and of a card's memory "
                f"({card.name}: {card.memory_bytes / 1e9:.1f} GB) it may use {usable / 1e9:.1f} GB"
            )
        stages.append(
            RooflineCost(
                name=f"stage {stage}", source=f"derived, not measured: one {card.title} ({sheet})",
                flops=card.flops, bandwidth=card.bandwidth, params=params, bytes_per_param=BYTES,
                kv_bytes_per_token=kv_bytes,
                flops_per_pair=4 * layers * mine.num_attention_heads * mine.head_dim,
                num_layers=layers, num_kv_tokens=slots, max_model_len=config.max_model_len,
            )
        )  # fmt: skip
    source = f"derived, not measured: {title} in 16 bits under the roofline of {_a(card)} ({sheet})"
    if tp * pp > 1:
        links = f"{link.name} ({_figures(link)})"
        if pp > 1 and pipeline_link != link:
            links += f", from stage to stage {pipeline_link.name} ({_figures(pipeline_link)})"
        source += (
            f", on {tp * pp} of them: tensor parallel {tp}, pipeline parallel {pp}, over {links}"
        )
    name = f"{card.name}-{title.lower().replace(' ', '-')}"
    return RankedCost(
        name=name if tp * pp == 1 else f"{name}, tp {tp} x pp {pp}",
        source=source, config=config, card=card, link=link, pipeline_link=pipeline_link,
        tensor_parallel_size=tp, stages=tuple(stages),
        num_kv_tokens=min(stage.num_kv_tokens or 0 for stage in stages),
        max_model_len=config.max_model_len,
    )  # fmt: skip


def _a(card: Card) -> str:
    return f"an {card.title}" if card.title[0] in "AHL" else f"a {card.title}"


def _figures(link: Link) -> str:
    return f"{link.latency_s * 1e6:g} us, {link.bandwidth / 1e9:g} GB/s"


def _check(config: LlamaConfig, tp: int, pp: int, utilization: float, reserved: int) -> None:
    check_integer("tensor_parallel_size", tp, 1, 64)
    check_integer("pipeline_parallel_size", pp, 1, 64)
    check_integer("reserved_bytes", reserved, 0)
    if not 0 < utilization <= 1:
        raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, got {utilization}")
    if isinstance(config, MoeConfig):
        raise ValueError(
            f"{config.architecture} is a mixture of experts, and its experts are not priced on ranks"
        )
    if any(window is not None for window in config.sliding_windows):
        raise ValueError(
            f"sliding_window of this {config.architecture}: a step is priced as if each token attended to "
            "all before it"
        )
    check_tensor_parallel(config, tp)
    if pp > 1:
        check_pipeline_parallel(config, pp)
