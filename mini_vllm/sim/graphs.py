"""What launching kernels costs, and what CUDA graphs save of it, around another cost.

Which graph a step runs under, and how far it is padded, is not modelled: `CudagraphDispatcher` says it, as it
does in the engine (`mini_vllm/cudagraph/`). What a launch costs is a number from outside, and the counts of
kernels are those of `mini_vllm/cudagraph/program.py`, fused nowhere; lab 05-02 derives the formulas.

Left out: capturing (before the first request), logits and sampling (in no graph, so the same under each
mode), and what a kernel takes at least, however little it has to do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from mini_vllm.config.engine import EngineConfig
from mini_vllm.cudagraph import CudagraphDispatcher, CUDAGraphMode, cudagraph_capture_sizes
from mini_vllm.sim.cost import RooflineCost, StepCost, StepWork
from mini_vllm.utils.untrusted import shorten_repr

LAUNCH_S = 5e-6
"""What a launch costs where nothing is said: others measured 3 to 6 us (lab 05-02 has the links)."""
MOST_ROWS = 1_000_000
LAYER_KERNELS = 12
SPLIT_KERNELS = 2
"""Of a layer's, those that no piece holds: writing K and V, attention."""
END_KERNELS = 3
"""The embedding, the angles of the positions, and the last norm."""


class GraphedStep(NamedTuple):
    """How a step runs.

    Attributes:
        mode: NONE, PIECEWISE or FULL.
        num_tokens: rows, padding included.
        launches: what the host launches, replays included.
    """

    mode: CUDAGraphMode
    num_tokens: int
    launches: int


@dataclass(frozen=True)
class GraphCost:
    """`base`, with the host's launches and the graphs' padding.

    Attributes:
        base: what host and device take besides. Padded rows are tokens to compute like others; K and V are
            read for real requests only.
        dispatcher: which graph a step runs under.
        num_layers: of the model.
        launch_s: seconds of the host a launch, of a kernel or a graph.

    Raises ValueError for layers or seconds that mean nothing.
    """

    base: StepCost
    dispatcher: CudagraphDispatcher
    num_layers: int
    launch_s: float = LAUNCH_S

    def __post_init__(self) -> None:
        if type(self.num_layers) is not int or self.num_layers < 1:
            raise ValueError(
                f"num_layers must be an integer of at least 1, got {shorten_repr(self.num_layers)}"
            )
        seconds = self.launch_s
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 0 <= seconds < 1
        ):
            raise ValueError(
                f"launch_s must be from 0 to below 1 second, got {shorten_repr(seconds)}"
            )

    @property
    def name(self) -> str:
        return f"{self.base.name}, {self.dispatcher.cudagraph_mode}"

    @property
    def source(self) -> str:
        return f"{self.base.source}; launches counted, and taken to cost {self.launch_s * 1e6:g} us each"

    @property
    def add_request_s(self) -> float:
        return self.base.add_request_s

    @property
    def num_kv_tokens(self) -> int | None:
        return self.base.num_kv_tokens

    @property
    def max_model_len(self) -> int | None:
        return self.base.max_model_len

    @property
    def scatter(self) -> tuple[float, ...]:
        return self.base.scatter

    def step(self, work: StepWork) -> GraphedStep:
        """How a step with this work runs; `uniform_decode` where no request computes more than one token."""
        mode, shape = self.dispatcher.dispatch(work.num_tokens, work.num_tokens == work.num_reqs)
        if mode is CUDAGraphMode.FULL:
            launches = 1
        elif mode is CUDAGraphMode.PIECEWISE:
            launches = self.num_layers + 1 + self.num_layers * SPLIT_KERNELS
        else:
            launches = self.num_layers * LAYER_KERNELS + END_KERNELS
        return GraphedStep(mode, shape.num_tokens, launches)

    def host(self, work: StepWork) -> float:
        return self.base.host(work)

    def launching(self, work: StepWork) -> float:
        """0 for a plan without tokens."""
        if not work.num_tokens:
            return 0.0
        return self.base.launching(work) + self.step(work).launches * self.launch_s

    def device(self, work: StepWork) -> float:
        if not work.num_tokens:
            return 0.0
        return self.base.device(work._replace(num_tokens=self.step(work).num_tokens))


def with_graphs(cost: StepCost, config: EngineConfig, launch_s: float = LAUNCH_S) -> GraphCost:
    """A derived cost with launches, under the mode and the ladder of sizes that the engine's settings have.

    Raises ValueError for a cost that was fitted to timed steps, whose launches are in it, and for a capture
    size that no card could hold.
    """
    if not isinstance(cost, RooflineCost):
        raise ValueError(
            f"the cost {cost.name!r} was fitted to timed steps, so their launches are in it: count them only "
            "with a derived one"
        )
    sizes = cudagraph_capture_sizes(
        config.max_num_seqs,
        config.token_budget,
        cudagraph_capture_sizes=config.cudagraph_capture_sizes,
    )
    if sizes and sizes[-1] > MOST_ROWS:
        raise ValueError(
            f"the largest capture size is {sizes[-1]}: the padding of each count of tokens is kept, for at "
            f"most {MOST_ROWS}"
        )
    mode = CUDAGraphMode[config.cudagraph_mode]
    dispatcher = CudagraphDispatcher(mode, sizes, config.max_num_seqs)
    return GraphCost(cost, dispatcher, cost.num_layers, launch_s)


class GraphTally:
    """What a run's steps ran under, counted one by one; steps without tokens are not counted.

    Args:
        cost: which says how each runs.
    """

    def __init__(self, cost: GraphCost) -> None:
        self.cost = cost
        self.steps: Counter[CUDAGraphMode] = Counter()
        self.launches = self.padded_tokens = 0

    def add(self, work: StepWork) -> None:
        if work.num_tokens:
            ran = self.cost.step(work)
            self.steps[ran.mode] += 1
            self.launches += ran.launches
            self.padded_tokens += ran.num_tokens - work.num_tokens

    def result(self) -> dict[str, str | int | float]:
        """The figures, for a table or a file."""
        steps = max(self.steps.total(), 1)
        modes = (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE)
        return {
            "cudagraph_mode": self.cost.dispatcher.cudagraph_mode.name,
            "launch_us": self.cost.launch_s * 1e6,
            **{f"steps_{mode.name.lower()}": self.steps[mode] for mode in modes},
            "launches_per_step": self.launches / steps,
            "padded_tokens_per_step": self.padded_tokens / steps,
        }
