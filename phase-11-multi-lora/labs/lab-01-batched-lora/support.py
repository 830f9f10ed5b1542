"""What the lab's tests and scripts share: steps of rows, counted products, and tenants on an engine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model_loader.safetensors_file import read_safetensors

Array = NDArray[np.float32]
Pairs = Mapping[str, tuple[Array, Array]]

RECORDED = Path(__file__).resolve().parent / "recorded.json"
ADAPTERS = DEFAULT_MODEL.parent / "tiny-llama-lora"
TENANTS = {"ada": "snake", "bo": "telegram", "cy": "questions"}
"""Each one's adapter. They are loaded in this order, so their slots are 0, 1 and 2."""
NEAR = 1e-5
"""How far a number may be from vLLM's, as a share of the largest."""


def recorded() -> dict[str, Any]:
    """What vLLM printed: under `steps` a layer's result per step, under `runs` each request's tokens."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


# ---- a layer and a step --------------------------------------------------------------------------


def draw(rng: random.Random, *shape: int) -> Array:
    """Numbers from -1 to 1; `random.Random` gives the same ones everywhere."""
    numbers = [2 * rng.random() - 1 for _ in range(int(np.prod(shape)))]
    return np.array(numbers, np.float32).reshape(shape)


@dataclass(frozen=True)
class Step:
    """Rows of one step at one layer.

    Attributes:
        sizes: columns of each projection, in the order in which they lie side by side.
        weight: `[sum(sizes), in]`.
        x: `[n, in]`.
        slot_of_row: -1 for none.
        adapters: by slot, A and B of what the adapter has, scaled; {} for a slot never filled.
    """

    sizes: dict[str, int]
    weight: Array
    x: Array
    slot_of_row: list[int]
    adapters: list[dict[str, tuple[Array, Array]]]

    @property
    def filled(self) -> list[bool]:
        return [bool(pairs) for pairs in self.adapters]

    def merged(self, slot: int) -> Array:
        """The layer's weight with the slot's adapter in it, float64; the base's for -1."""
        weight = self.weight.astype(np.float64)
        start = 0
        for name, size in self.sizes.items():
            if slot >= 0 and name in self.adapters[slot]:
                a, b = (matrix.astype(np.float64) for matrix in self.adapters[slot][name])
                weight[start : start + size] += b @ a
            start += size
        return weight

    def row_with(self, row: int, slot: int) -> NDArray[np.float64]:
        """Row `row` of the result if it had the slot's adapter."""
        product: NDArray[np.float64] = self.merged(slot) @ self.x[row].astype(np.float64)
        return product

    def expected(self) -> NDArray[np.float64]:
        """The result by merged weights, a row at a time."""
        return np.stack([self.row_with(i, slot) for i, slot in enumerate(self.slot_of_row)])


PACKED = {"q": 8, "k": 4, "v": 4}


def make_step(
    seed: int,
    slot_of_row: Sequence[int],
    has: Sequence[Sequence[str]],
    sizes: Mapping[str, int] = PACKED,
    size_in: int = 8,
) -> Step:
    """A step whose slots hold adapters with these projections; ranks 1 to 4."""
    rng = random.Random(seed)
    weight = draw(rng, sum(sizes.values()), size_in)
    adapters = []
    for names in has:
        rank = 1 + int(rng.random() * 4)
        adapters.append({n: (draw(rng, rank, size_in), draw(rng, sizes[n], rank)) for n in names})
    x = draw(rng, len(slot_of_row), size_in)
    return Step(dict(sizes), weight, x, list(slot_of_row), adapters)


STEPS: dict[str, Step] = {
    "one adapter": make_step(1, [0, 0, 0], ["qkv"]),
    "only q and v": make_step(2, [0, 0, 1, 1, 0], ["qv", "k"]),
    "runs apart": make_step(3, [0, 1, 0, 2, 1, 0], ["q", "kv", "qkv"]),
    "a base row, a slot spare": make_step(4, [-1, 1, -1, 2, 0], ["qkv", "v", "qv", ""]),
    "a base row, no slot spare": make_step(5, [0, -1, 1, -1, 2], ["qkv", "v", "qv"]),
    "the last adapter has no row": make_step(6, [-1, 0, 0, -1], ["q", "kv", "qkv"]),
    "one slot": make_step(7, [-1, 0, -1, 0], ["qv"]),
    "a hole before the last": make_step(8, [0, -1, -1, 2], ["qv", "", "qkv"]),
    "no adapter in the step": make_step(9, [-1, -1, -1], ["qv", "qkv"]),
    "many rows": make_step(10, [3, 3, -1, 0, 1, 1, 1, -1, 2, 0, 3, -1], ["q", "k", "v", "qkv"]),
}


# ---- counted products ----------------------------------------------------------------------------


@dataclass
class Tally:
    """Matrix products, the multiplications in them, and the numbers of W, A and B that they read."""

    products: int = 0
    multiplications: int = 0
    read: int = 0


class Counted(np.ndarray[Any, Any]):
    """An array whose products are counted, and those of all that is computed from it."""

    tally: Tally
    is_weight = False

    def __array_finalize__(self, made_from: Any) -> None:
        if isinstance(made_from, Counted) and hasattr(made_from, "tally"):
            self.tally, self.is_weight = made_from.tally, made_from.is_weight

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **others: Any
    ) -> Any:
        tally = next(one.tally for one in (*inputs, *(out or ())) if isinstance(one, Counted))
        plain = [np.asarray(one) for one in inputs]
        if out is not None:
            others["out"] = tuple(np.asarray(one) for one in out)
        result = getattr(ufunc, method)(*plain, **others)
        if ufunc is np.matmul:
            tally.products += 1
            tally.multiplications += int(np.size(result)) * plain[0].shape[-1]
            tally.read += sum(one.size for one in inputs if getattr(one, "is_weight", False))
        return count_in(tally, result) if out is None else out[0]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__ in ("dot", "einsum", "inner", "tensordot", "vdot"):
            raise AssertionError(f"write products with @: np.{func.__name__} is not counted")
        return super().__array_function__(func, types, args, kwargs)


def count_in(tally: Tally, array: Any, is_weight: bool = False) -> Any:
    """The array, with its products counted in `tally`."""
    counted = np.asarray(array).view(Counted)
    counted.tally, counted.is_weight = tally, is_weight
    return counted


def counted_parts(lab: ModuleType, step: Step, tally: Tally) -> tuple[Any, Any, list[list[Any]]]:
    """A step's rows, the base's weight and each slot's pieces, all counted in `tally`."""
    slots = [
        [
            lab.Piece(p.start, count_in(tally, p.lora_a, True), count_in(tally, p.lora_b, True))
            for p in lab.place(step.sizes, pairs)
        ]
        for pairs in step.adapters
    ]
    return count_in(tally, step.x), count_in(tally, step.weight, True), slots


def count_step(lab: ModuleType, step: Step) -> Tally:
    """What `step_layer` takes for a step."""
    tally = Tally()
    x, weight, slots = counted_parts(lab, step, tally)
    lab.step_layer(x, weight, list(step.slot_of_row), slots)
    return tally


# ---- tenants on an engine ------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Requests that come together, to a server on which all three adapters were used before.

    Attributes:
        requests: tenant, prompt, tokens to generate. A name that is no tenant has no adapter.
        max_loras: slots.
        removed: tenants whose adapters are removed before.
    """

    requests: tuple[tuple[str, str, int], ...]
    max_loras: int = 4
    removed: tuple[str, ...] = field(default=())


PROMPT = "A prompt of 77 tokens"
_ALL = (
    ("ada", PROMPT, 40),
    ("eve", PROMPT, 40),
    ("cy", PROMPT, 40),
    ("bo", PROMPT, 40),
    ("ada", "Not every request", 24),
    ("bo", "The last token of a prompt", 32),
)
_TWO = (("ada", "Not every request", 28), ("eve", PROMPT, 48))
RUNS: dict[str, Run] = {
    "four slots": Run(_ALL),
    "three slots": Run(_ALL, max_loras=3),
    "Ada and Eve": Run(_TWO, max_loras=3),
    "Eve alone": Run(_TWO[1:], max_loras=3),
    "Cy's adapter removed": Run(_TWO, max_loras=3, removed=("cy",)),
}
SETTINGS: dict[str, Any] = {
    "block_size": 16,
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "num_gpu_blocks_override": 64,
    "max_lora_rank": 16,
    "enable_prefix_caching": False,
}
"""Of an engine, here and in vLLM. Without the prefix cache no run reads what another has left."""


def serve(llm: Any, make_params: Callable[..., Any], make_lora: Any, run: Run) -> list[list[int]]:
    """A run's tokens by `mini_vllm` or vLLM, with `make_lora` None without adapters."""
    loras = {}
    if make_lora is not None:
        for number, (tenant, adapter) in enumerate(TENANTS.items(), 1):
            loras[tenant] = make_lora(adapter, number, str(ADAPTERS / adapter))
            one = make_params(temperature=0, max_tokens=1)
            llm.generate(["A"], [one], lora_request=[loras[tenant]], use_tqdm=False)
        for tenant in run.removed:
            if hasattr(llm.llm_engine, "remove_lora"):
                llm.llm_engine.remove_lora(loras[tenant].lora_int_id)
    outputs = llm.generate(
        [prompt for _, prompt, _ in run.requests],
        [make_params(temperature=0, max_tokens=n, ignore_eos=True) for _, _, n in run.requests],
        lora_request=[loras.get(name) for name, _, _ in run.requests],
        use_tqdm=False,
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def play(lab: ModuleType, run: Run, as_cpu_build: bool = False) -> list[list[int]]:
    """A run's tokens by `mini_vllm`, its linears with the lab's functions in them."""
    llm = LLM(enable_lora=True, max_loras=run.max_loras, **SETTINGS)
    put_in(llm, lab, run.max_loras, as_cpu_build)
    return serve(llm, SamplingParams, LoRARequest, run)


def put_in(llm: LLM, lab: ModuleType, max_loras: int, as_cpu_build: bool) -> None:
    """Let each linear's slots be filled by the lab's `place`, and its rows added to by `add_grouped`.

    With `as_cpu_build` a row without an adapter gets the slot that the lab's `borrowed` says.
    """
    component: Any = llm.llm_engine.engine_core.model_runner.lora
    filled = [False] * max_loras

    def set_slot(index: int, lora_request: LoRARequest) -> None:
        filled[index] = True
        pairs = read_adapter(lora_request.lora_name, lab.scaled)
        for layer in component.layers:
            sizes = dict(zip(layer.base_layer.names, layer.base_layer.output_sizes, strict=True))
            its = {name: pairs[name] for name in sizes if name in pairs}
            layer.slots[index] = lab.place(sizes, its)

    def add_lora(y: Array, x: Array, mapping: Any, slots: Mapping[int, Any]) -> None:
        slot_of_row = [-1] * len(x)
        for one in mapping.runs:
            slot_of_row[one.start : one.stop] = [one.slot] * (one.stop - one.start)
        if as_cpu_build:
            for row, slot in lab.borrowed(list(slot_of_row), list(filled)).items():
                slot_of_row[row] = slot
        lab.add_grouped(y, x, slot_of_row, [slots.get(i, []) for i in range(max_loras)])

    component.manager._set_slot = set_slot
    for layer in component.layers:
        layer.add_lora = add_lora


def read_adapter(name: str, scaled: Callable[..., Array]) -> dict[str, tuple[Array, Array]]:
    """A and B of each module that an adapter has, B scaled."""
    settings = json.loads((ADAPTERS / name / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = read_safetensors(ADAPTERS / name / "adapter_model.safetensors")
    found = {}
    for key, lora_a in tensors.items():
        if key.endswith(".lora_A.weight"):
            module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            lora_b = tensors[key.replace(".lora_A.", ".lora_B.")]
            how = settings["lora_alpha"], settings["r"], settings["use_rslora"]
            found[module] = (lora_a, scaled(lora_b, *how))
    return found


# ---- merged weights ------------------------------------------------------------------------------


def _scaled(lora_b: Array, alpha: float, rank: int, use_rslora: bool) -> Array:
    return lora_b * np.float32(alpha / (rank**0.5 if use_rslora else rank))


@cache
def merged_engine(tenant: str) -> LLM:
    """An engine of this tenant's own: the base's weights with the adapter in them; else the base's."""
    llm = LLM(**{k: v for k, v in SETTINGS.items() if k != "max_lora_rank"})
    if tenant in TENANTS:
        pairs = read_adapter(TENANTS[tenant], _scaled)
        model: Any = llm.llm_engine.engine_core.model_runner.model
        for layer in model.layers:
            for linear in (*vars(layer.self_attn).values(), *vars(layer.mlp).values()):
                if hasattr(linear, "output_sizes"):
                    linear.weight = _merge(linear, pairs)
    return llm


def _merge(linear: Any, pairs: Pairs) -> Array:
    weight: Array = linear.weight.copy(order="K")
    start = 0
    for name, size in zip(linear.names, linear.output_sizes, strict=True):
        if name in pairs:
            lora_a, lora_b = pairs[name]
            weight[start : start + size] += lora_b @ lora_a
        start += size
    return weight


def merged_tokens(run: Run) -> list[list[int]]:
    """Each request's tokens on its tenant's own engine."""
    found: dict[int, list[int]] = {}
    for name in dict.fromkeys(name for name, _, _ in run.requests):
        places = [i for i, one in enumerate(run.requests) if one[0] == name]
        its = Run(tuple(run.requests[i] for i in places))
        found |= zip(places, serve(merged_engine(name), SamplingParams, None, its), strict=True)
    return [found[i] for i in range(len(run.requests))]


def text_of(tokens: Sequence[int]) -> str:
    """What the shipped model's tokens spell."""
    text: str = merged_engine("eve").get_tokenizer().decode(list(tokens))
    return text
