"""A workload simulator: the real scheduler and KV cache manager, a virtual clock, no model.

In reading order: `cost.py` says what a step costs, `lengths.py` and `workload.py` make the requests,
`simulator.py` is the loop, `metrics.py` and `sketch.py` write down what came of it; `calibrate.py` fits
a cost to steps that were timed, and `graphs.py` adds launches, and CUDA graphs, to a derived one.
`speculation.py` drafts, and accepts by given rates; `fleet.py` has many engines behind a `router.py`. On
the command line it is `mini-vllm simulate`, and `mini-vllm sweep` for a grid of settings: `sweep.py` and
`sweep_workers.py`, which know nothing of what is run.
"""

from mini_vllm.sim.calibrate import TimedStep, calibrate
from mini_vllm.sim.cost import (
    LinearCost,
    MoeRooflineCost,
    RooflineCost,
    StepCost,
    StepWork,
    load_cost,
    work_of,
)
from mini_vllm.sim.fleet import Fleet
from mini_vllm.sim.graphs import GraphCost, GraphTally, with_graphs
from mini_vllm.sim.lengths import Lengths, arrival_times
from mini_vllm.sim.metrics import ServingMetrics
from mini_vllm.sim.router import ROUTERS, Router, make_router
from mini_vllm.sim.simulator import SimParts, Simulator, mini_parts
from mini_vllm.sim.speculation import Speculation
from mini_vllm.sim.workload import SimRequest, dataset_requests, random_requests, read_dataset

__all__ = [
    "ROUTERS",
    "Fleet",
    "GraphCost",
    "GraphTally",
    "Lengths",
    "LinearCost",
    "MoeRooflineCost",
    "RooflineCost",
    "Router",
    "ServingMetrics",
    "SimParts",
    "SimRequest",
    "Simulator",
    "Speculation",
    "StepCost",
    "StepWork",
    "TimedStep",
    "arrival_times",
    "calibrate",
    "dataset_requests",
    "load_cost",
    "make_router",
    "mini_parts",
    "random_requests",
    "read_dataset",
    "with_graphs",
    "work_of",
]
