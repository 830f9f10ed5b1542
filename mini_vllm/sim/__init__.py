"""A workload simulator: the real scheduler and KV cache manager, a virtual clock, no model.

In reading order: `cost.py` says what a step costs, `lengths.py` and `workload.py` make the requests,
`simulator.py` is the loop, `metrics.py` and `sketch.py` write down what came of it; `calibrate.py` fits
a cost to steps that were timed, and `graphs.py` adds launches, and CUDA graphs, to a derived one. `ranks.py`
has the cost of a model on several cards, `hardware.py` the cards and links, `collectives.py` what sums take.
`speculation.py` drafts, and accepts by given rates; `fleet.py` has many engines behind a `router.py`. On
the command line it is `mini-vllm simulate`, and `mini-vllm sweep` for a grid of settings: `sweep.py` and
`sweep_workers.py`, which know nothing of what is run.
"""

from mini_vllm.sim.calibrate import TimedStep, calibrate
from mini_vllm.sim.collectives import (
    all_gather_s,
    all_reduce_s,
    all_reduce_ways,
    one_shot_all_reduce_s,
    ring_all_reduce_s,
    should_custom_all_reduce,
    two_shot_all_reduce_s,
)
from mini_vllm.sim.cost import (
    LinearCost,
    MoeRooflineCost,
    PipelineCost,
    RooflineCost,
    StageTime,
    StepCost,
    StepWork,
    load_cost,
    work_of,
)
from mini_vllm.sim.fleet import Fleet
from mini_vllm.sim.graphs import GraphCost, GraphTally, with_graphs
from mini_vllm.sim.hardware import Card, Link, cards, get_card, get_link, links, models
from mini_vllm.sim.lengths import Lengths, arrival_times
from mini_vllm.sim.metrics import ServingMetrics
from mini_vllm.sim.ranks import RankCalls, RankedCost, make_ranked_cost, rank_calls, rank_params
from mini_vllm.sim.router import ROUTERS, Router, make_router
from mini_vllm.sim.simulator import SimParts, Simulator, mini_parts
from mini_vllm.sim.speculation import Speculation
from mini_vllm.sim.workload import SimRequest, dataset_requests, random_requests, read_dataset

__all__ = [
    "ROUTERS",
    "Card",
    "Fleet",
    "GraphCost",
    "GraphTally",
    "Lengths",
    "LinearCost",
    "Link",
    "MoeRooflineCost",
    "PipelineCost",
    "RankCalls",
    "RankedCost",
    "RooflineCost",
    "Router",
    "ServingMetrics",
    "SimParts",
    "SimRequest",
    "Simulator",
    "Speculation",
    "StageTime",
    "StepCost",
    "StepWork",
    "TimedStep",
    "all_gather_s",
    "all_reduce_s",
    "all_reduce_ways",
    "arrival_times",
    "calibrate",
    "cards",
    "dataset_requests",
    "get_card",
    "get_link",
    "links",
    "load_cost",
    "make_ranked_cost",
    "make_router",
    "mini_parts",
    "models",
    "one_shot_all_reduce_s",
    "random_requests",
    "rank_calls",
    "rank_params",
    "read_dataset",
    "ring_all_reduce_s",
    "should_custom_all_reduce",
    "two_shot_all_reduce_s",
    "with_graphs",
    "work_of",
]
