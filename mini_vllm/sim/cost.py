"""What a step costs: the only part of the simulator that is a model and not the real code.

A step is described by seven counts (`StepWork`), and a `StepCost` turns them into seconds. There are two
kinds. `LinearCost` is fitted to steps that were timed (`calibrate.py`); `RooflineCost` is
derived from a data sheet, and nothing was timed: it is the least that the step can take.

Time is told apart by what spends it. The *host* plans and takes results in; the *device* computes. One
after the other under synchronous scheduling; side by side under asynchronous scheduling. What the host
does for a step is counted where the step is planned, also what it does when the results come. One thing
that the host does overlaps with the device in either case: launching kernels, because the first one runs
while the second is launched. Neither kind of cost counts it; `graphs.py` puts it around a `RooflineCost`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mini_vllm.utils.untrusted import parse_json, read_bytes, shorten_repr

PRESETS_FILE = Path(__file__).parent / "presets.json"
"""Calibrated presets, written by `python -m benchmarks.simulator`; missing until a quiet run."""


class StepWork(NamedTuple):
    """What one planned step asks for.

    Attributes:
        steps: 1, so that a fixed cost is a cost like the others.
        prompt_steps: 1 if some request computes more than one token. Engines have another way through
            attention then, or no CUDA graph, which costs once and not by the token.
        num_reqs: requests in the batch.
        num_new_reqs: of them, those that the worker sees for the first time.
        num_tokens: tokens to compute.
        kv_tokens: tokens whose K and V are read: the requests' lengths after the step, summed.
        attention_pairs: (query, key) pairs: for each token, the keys that it attends to, itself
            included. Equal to `kv_tokens` where all requests decode; quadratic in a prompt's length.
    """

    steps: int
    prompt_steps: int
    num_reqs: int
    num_new_reqs: int
    num_tokens: int
    kv_tokens: int
    attention_pairs: int


def work_of(scheduler_output: Any, requests: Mapping[str, Any]) -> StepWork:
    """The work of a plan, read right after `schedule()`, when `num_computed_tokens` has advanced.

    Both engines' plans and requests have the three names that are read here.
    """
    num_tokens = kv_tokens = attention_pairs = 0
    num_scheduled_tokens = scheduler_output.num_scheduled_tokens
    for req_id, n in num_scheduled_tokens.items():
        end = requests[req_id].num_computed_tokens
        num_tokens += n
        kv_tokens += end
        attention_pairs += end if n == 1 else n * end - n * (n - 1) // 2
    return StepWork(
        1,
        int(num_tokens > len(num_scheduled_tokens)),
        len(num_scheduled_tokens),
        len(scheduler_output.scheduled_new_reqs),
        num_tokens,
        kv_tokens,
        attention_pairs,
    )


class StepCost(Protocol):
    """Seconds of a step, and of taking one request in.

    The host is busy for `host`, when the device has nothing of this step yet, and then for `launching`, while
    it computes. The step has been computed when the last kernel is launched and `device` is over.

    Attributes:
        name, source: what it is, and where its numbers come from.
        add_request_s: the front end's time for a request: checking it, making it, queueing it.
        num_kv_tokens: slots of the KV cache that goes with it; None: say it yourself.
        max_model_len: the model's limit in tokens; None likewise.
        scatter: factors of a step's time, of which the simulator draws one a step; empty: always 1.
    """

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def add_request_s(self) -> float: ...
    @property
    def num_kv_tokens(self) -> int | None: ...
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def scatter(self) -> tuple[float, ...]: ...
    def host(self, work: StepWork) -> float: ...
    def launching(self, work: StepWork) -> float: ...
    def device(self, work: StepWork) -> float: ...


class StageTime(NamedTuple):
    """Seconds that a stage is busy with a step, and that the step is then on its way to the next one."""

    busy: float
    hand_over: float


@runtime_checkable
class PipelineCost(StepCost, Protocol):
    """A cost with the stages of a pipeline (`ranks.py`); `device` is from the first to the last."""

    @property
    def pipeline_parallel_size(self) -> int: ...
    def stage_times(self, work: StepWork) -> Sequence[StageTime]: ...


def _weighted(weights: tuple[float, ...], work: StepWork) -> float:
    return sum([weight * count for weight, count in zip(weights, work, strict=True) if weight])


@dataclass(frozen=True)
class LinearCost:
    """A cost that is linear in the counts of `StepWork`.

    Attributes:
        host_s, device_s: seconds a unit, in the order of `StepWork`'s fields, none negative.
        scatter: what real steps took over what is expected of them, each value as often as any other.
            A simulator draws one for each step. Empty: equal work takes equal time.

    Raises ValueError for another number of seconds, or one that is negative or no number.
    """

    name: str
    source: str
    host_s: tuple[float, ...]
    device_s: tuple[float, ...]
    add_request_s: float = 0.0
    num_kv_tokens: int | None = None
    max_model_len: int | None = None
    scatter: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for value in self.scatter:
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"scatter must be numbers above 0, got {shorten_repr(value)}")
        for field in ("host_s", "device_s"):
            values = getattr(self, field)
            if len(values) != len(StepWork._fields):
                raise ValueError(
                    f"{field} wants {len(StepWork._fields)} numbers, one for each of "
                    f"{', '.join(StepWork._fields)}; got {shorten_repr(values)}"
                )
            for value in values:
                _check_seconds(field, value)
        _check_seconds("add_request_s", self.add_request_s)
        if not self.host_s[0] + self.device_s[0] > 0:
            raise ValueError("a step's fixed cost must be above 0 seconds, got 0")
        for field in ("num_kv_tokens", "max_model_len"):
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(
                    f"{field} must be an integer of at least 1, got {shorten_repr(value)}"
                )

    def host(self, work: StepWork) -> float:
        return _weighted(self.host_s, work)

    def launching(self, work: StepWork) -> float:
        """Nothing of its own: a step was timed together with its launches."""
        return 0.0

    def device(self, work: StepWork) -> float:
        """0 for a plan without tokens: nothing is sent to the device."""
        return _weighted(self.device_s, work) if work.num_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "host_s": dict(zip(StepWork._fields, self.host_s, strict=True)),
            "device_s": dict(zip(StepWork._fields, self.device_s, strict=True)),
        }

    @classmethod
    def from_json(cls, data: Any) -> LinearCost:
        """Raises ValueError for anything that `to_json` has not written."""
        if not isinstance(data, dict):
            raise ValueError(f"a cost is a JSON object, got {shorten_repr(data)}")
        wanted, known = {"name", "source", "host_s", "device_s"}, set(cls.__dataclass_fields__)
        for key in sorted(wanted - set(data)) + sorted(set(data) - known):
            what = "unknown key" if key in data else "missing key"
            raise ValueError(
                f"{what} {shorten_repr(key)} in a cost; it has {', '.join(sorted(known))}"
            )
        values = dict(data)
        for key in ("host_s", "device_s"):
            terms = data[key]
            if not isinstance(terms, dict) or set(terms) - set(StepWork._fields):
                raise ValueError(
                    f"{key} must be an object with keys among {', '.join(StepWork._fields)}, "
                    f"got {shorten_repr(terms)}"
                )
            values[key] = tuple(terms.get(field, 0.0) for field in StepWork._fields)
        if not isinstance(data.get("scatter", []), list | tuple):
            raise ValueError(
                f"scatter must be a list of numbers, got {shorten_repr(data['scatter'])}"
            )
        values["scatter"] = tuple(data.get("scatter", ()))
        for key in ("name", "source"):
            if not isinstance(data[key], str) or not data[key]:
                raise ValueError(f"{key} must be a text, got {shorten_repr(data[key])}")
        return cls(**values)


def _check_seconds(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{field} must be a number of seconds, got {shorten_repr(value)}")
    if not 0 <= value < 1e6:
        raise ValueError(f"{field} must be from 0 to 1e6 seconds, got {shorten_repr(value)}")


@dataclass(frozen=True)
class RooflineCost:
    """The least that a step can take on a GPU: all its bytes at full bandwidth, or all its floating
    point operations at full speed, whichever is longer.

    No launch, no scheduling, no sampling, no inefficiency of a kernel: real steps are slower, and by
    how much has not been measured here. Good for what dominates and where the knee is; not for dates.

    Attributes:
        flops, bandwidth: of the card, dense, in operations and bytes a second.
        params, bytes_per_param: each is read once a step and costs two operations a token. (The
            embedding table is counted in, though a token reads one row of it.)
        kv_bytes_per_token: K and V of all layers.
        flops_per_pair: of attention, a query and a key: 4 x layers x heads x head size.
        num_layers: of the model. The roofline does not need them; `GraphCost` counts launches with them.
    """

    name: str
    source: str
    flops: float
    bandwidth: float
    params: int
    bytes_per_param: int
    kv_bytes_per_token: int
    flops_per_pair: int
    num_layers: int
    num_kv_tokens: int | None = None
    max_model_len: int | None = None
    add_request_s: float = 0.0
    scatter: tuple[float, ...] = ()

    def host(self, work: StepWork) -> float:
        """Nothing: a data sheet says nothing about it."""
        return 0.0

    def launching(self, work: StepWork) -> float:
        """Nothing, likewise."""
        return 0.0

    def params_read(self, num_tokens: int) -> float:
        """Of the parameters, those that a step of so many tokens reads: all."""
        return self.params

    @property
    def params_used(self) -> int:
        """Of the parameters, those that one token is multiplied with: all."""
        return self.params

    def device(self, work: StepWork) -> float:
        if not work.num_tokens:
            return 0.0
        size = self.params_read(work.num_tokens) * self.bytes_per_param
        size += work.kv_tokens * self.kv_bytes_per_token
        operations = 2 * self.params_used * work.num_tokens
        operations += work.attention_pairs * self.flops_per_pair
        return max(size / self.bandwidth, operations / self.flops)


@dataclass(frozen=True)
class MoeRooflineCost(RooflineCost):
    """The same for a mixture of experts: a step reads the experts that its tokens choose, so what it reads
    grows with its tokens, until all experts are in use.

    Attributes:
        params: those outside the experts, which every step reads.
        num_experts, num_experts_per_tok: of a layer, and of these, how many a token goes to.
        params_per_expert: of one expert, all layers together.
    """

    num_experts: int = 0
    num_experts_per_tok: int = 0
    params_per_expert: int = 0

    def experts_read(self, num_tokens: int) -> float:
        """Experts of a layer that so many tokens use on average, if the router has no favourites."""
        missed_by_one = 1 - self.num_experts_per_tok / self.num_experts
        return self.num_experts * (1 - missed_by_one**num_tokens)

    def params_read(self, num_tokens: int) -> float:
        return self.params + self.experts_read(num_tokens) * self.params_per_expert

    @property
    def params_used(self) -> int:
        return self.params + self.num_experts_per_tok * self.params_per_expert


def _llama(
    model: str,
    params: int,
    shape: tuple[int, int, int, int],
    max_model_len: int,
    card: str,
    peak: tuple[float, float],
) -> RooflineCost:
    """A Llama in 16 bits on a card of 80 GiB.

    The KV cache gets what 0.92 of the memory (`gpu_memory_utilization` at the pin) leaves beside the
    weights, on paper: activations and CUDA graphs come off too.

    Args:
        shape: layers, heads, KV heads, head size.
        peak: of the card, dense: operations and bytes a second.
    """
    layers, heads, kv_heads, head_size = shape
    kv_bytes = 2 * layers * kv_heads * head_size * 2
    return RooflineCost(
        name=_preset_name(model, card),
        source=_sheet_source(model, card, peak),
        flops=peak[0], bandwidth=peak[1], params=params, bytes_per_param=2,
        kv_bytes_per_token=kv_bytes, flops_per_pair=4 * layers * heads * head_size, num_layers=layers,
        num_kv_tokens=int((0.92 * 80 * 1024**3 - 2 * params) / kv_bytes), max_model_len=max_model_len,
    )  # fmt: skip


def _preset_name(model: str, card: str) -> str:
    return f"{card.split()[0].lower()}-{model.lower()}"


def _sheet_source(model: str, card: str, peak: tuple[float, float]) -> str:
    sheet = f"{peak[0] / 1e12:g} TFLOP/s, {peak[1] / 1e9:,.0f} GB/s"
    return f"derived, not measured: {model} in 16 bits under the roofline of an {card} ({sheet})"


def _eagle_head(target: RooflineCost, card: str, peak: tuple[float, float]) -> RooflineCost:
    """The drafter for Llama-3-8B that EAGLE trains: one of its layers, a matrix that joins an embedding and
    a hidden state, and the model's own last matrix, which each of its passes reads, too."""
    layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    return replace(
        target,
        name=_preset_name("eagle-llama-3-8b", card),
        source=_sheet_source("an EAGLE head for Llama-3-8B", card, peak),
        params=layer + 2 * 4096 * 4096 + 128_256 * 4096,
        kv_bytes_per_token=target.kv_bytes_per_token // target.num_layers,
        flops_per_pair=target.flops_per_pair // target.num_layers,
        num_layers=1,
    )


def _mixtral(card: str, peak: tuple[float, float], memory: float) -> MoeRooflineCost:
    """Mixtral-8x7B in 16 bits, as phase 07 counts it: the embedding's rows are left out."""
    layers, expert = 32, 3 * 4096 * 14336
    around = layers * (2 * 4096 * (4096 + 1024) + 8 * 4096 + 2 * 4096) + 4096 + 32_000 * 4096
    kv_bytes = 2 * layers * 8 * 128 * 2
    room = 0.92 * memory - 2 * (around + 8 * layers * expert + 32_000 * 4096)
    return MoeRooflineCost(
        name=_preset_name("Mixtral-8x7B", card),
        source=_sheet_source("Mixtral-8x7B", card, peak),
        flops=peak[0], bandwidth=peak[1], params=around, bytes_per_param=2,
        kv_bytes_per_token=kv_bytes, flops_per_pair=4 * layers * 32 * 128, num_layers=layers,
        num_kv_tokens=int(room / kv_bytes), max_model_len=32_768,
        num_experts=8, num_experts_per_tok=2, params_per_expert=layers * expert,
    )  # fmt: skip


# The data sheets of phase-00-foundations/labs/lab-04-prefill-vs-decode/gpus.json; NVIDIA prints the H100's
# rate with sparsity, which is twice the dense one.
_A100, _H100 = ("A100 80GB SXM", (312e12, 2.039e12)), ("H100 SXM", (989.5e12, 3.35e12))
_LLAMA_3_8B = ("Llama-3-8B", 8_030_261_248, (32, 32, 8, 128), 8192)  # counted in phase 00's guide
_LLAMA_3_2_1B = ("Llama-3.2-1B", 1_235_814_400, (16, 32, 8, 64), 131_072)
_H200 = ("H200 SXM", (989.5e12, 4.8e12))
DERIVED: dict[str, RooflineCost] = {
    cost.name: cost
    for cost in (
        _llama(*_LLAMA_3_8B, *_A100),
        _llama(*_LLAMA_3_8B, *_H100),
        _llama(*_LLAMA_3_2_1B, *_A100),
        _llama(*_LLAMA_3_2_1B, *_H100),
        _eagle_head(_llama(*_LLAMA_3_8B, *_A100), *_A100),
        _eagle_head(_llama(*_LLAMA_3_8B, *_H100), *_H100),
        _mixtral(*_H200, memory=141e9),
    )
}


def presets() -> dict[str, StepCost]:
    """Every preset by name: the derived ones, and the calibrated ones that this checkout has."""
    found: dict[str, StepCost] = dict(DERIVED)
    if PRESETS_FILE.is_file():
        for data in json.loads(PRESETS_FILE.read_text(encoding="utf-8")):
            found[data["name"]] = LinearCost.from_json(data)
    return found


def load_cost(name: str) -> StepCost:
    """A preset by name, or the `LinearCost` in a `.json` file.

    Raises ValueError for a name that is neither, or a file that holds no cost; OSError.
    """
    known = presets()
    if name in known:
        return known[name]
    if not name.endswith(".json"):
        raise ValueError(
            f"unknown cost {shorten_repr(name)}: one of {', '.join(known)}, or a .json file"
        )
    try:
        return LinearCost.from_json(parse_json(read_bytes(Path(name))))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
