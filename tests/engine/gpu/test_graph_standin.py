"""The stand-in for CUDA graphs: it replays what was recorded, and refuses what a GPU cannot do.

What must be refused and what must not stands in two lists of expressions. Each is evaluated in a capture;
where there is a GPU, the same lists are held against real graphs.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

REFUSED = {
    "x.sum().item()": "host sync",
    "x.tolist()": "host sync",
    "x.cpu()": "host sync",
    "x.cpu().numpy()": "host sync",
    "bool(x.any())": "host sync",
    "int(x[0, 0])": "host sync",
    "float(x[0, 0])": "host sync",
    "print(x)": "host sync",
    "f'{x}'": "host sync",
    "list(range(i[0]))": "host sync",
    "max(x[0, 0], x[0, 1])": "host sync",
    "torch.equal(x, x)": "host sync",
    "torch.allclose(x, x)": "host sync",
    "x[i[0]]": "host sync",
    "graphs.synchronize()": "host sync",
    "x.nonzero()": "data-dependent shape",
    "x[x > 0]": "data-dependent shape",
    "x.__setitem__(x > 0, w[0, 0])": "data-dependent shape",
    "torch.where(x > 0)": "data-dependent shape",
    "x.masked_select(x > 0)": "data-dependent shape",
    "torch.unique(x)": "data-dependent shape",
    "torch.repeat_interleave(i)": "data-dependent shape",
    "torch.tensor([1, 2], device=device)": "data from Python",
    "torch.tensor(1.0, device=device)": "data from Python",
    "torch.as_tensor(np.zeros(3), device=device)": "data from Python",
    "torch.from_numpy(np.zeros(3)).to(device)": "data from Python",
    "x.new_tensor([1.0])": "data from Python",
    "x[[0, 1]]": "data from Python",
    "x[:, np.array([0, 1])]": "data from Python",
}
ONLY_HERE = {
    "x.resize_(2)": "moved memory",  # a GPU lets it pass, and reads the old address
    "torch.empty(3, pin_memory=True)": "host sync",  # torch's releases differ
}

ALLOWED = [
    "x * 2.0 + 1",
    "torch.where(x > 0, x, 0.0)",
    "x.masked_fill(x > 0, 3)",
    "x.__setitem__(x > 0, 0.0)",
    "x.__setitem__(0, w[0])",
    "x[0] + x[:, None]",
    "torch.full((3,), 2.0, device=device)",
    "torch.arange(4, device=device)[None]",
    "x.to(torch.float64).to(torch.float32)",
    "torch.cat([x, x]).chunk(2)",
    "x.t().contiguous()",
    "torch.einsum('ab,cb->ac', x, w)",
    "torch.nn.functional.linear(x, w)",
    "torch.nn.functional.linear(x, w, w[:, 0])",
    "torch.nn.functional.embedding(i, w)",
    "x.argmax(-1)",
    "x.topk(2)",
    "x.sort()",
    "torch.zeros_like(x).copy_(x)",
    "x[i]",
    "x.index_select(0, i)",
    "torch.searchsorted(x[0].sort().values, x)",
    "x.half().float()",
    "x.unbind(0)",
    "x.add_(1)",
    "x[1:].mul_(2)",
    "x.clone().view(-1).index_copy_(0, i, w[0, :2])",
    "x.cumsum(0)",
    "x.softmax(-1)",
    "torch.mm(x, w.t(), out=torch.empty(4, 6, device=device))",
    "x.reshape(-1)[3]",
    "x.expand(3, 4, 8).flatten(0, 1)",
    "x.var()",
    "x.shape[0] * x",
    "x.unflatten(1, (-1, 4)).transpose(0, 1)",
    "x[:0] + 1",
]


def names(device: str) -> dict[str, Any]:
    """What the expressions speak of: the same numbers each time."""
    import torch

    from mini_vllm.gpu.graph_standin import graphs_for

    made = torch.Generator().manual_seed(1)
    return {
        "torch": torch,
        "np": np,
        "device": device,
        "graphs": graphs_for(device),
        "x": torch.randn(4, 8, generator=made).to(device),
        "w": torch.randn(6, 8, generator=made).to(device),
        "i": torch.tensor([2, 0], device=device),
    }


@pytest.mark.parametrize("expression", [*REFUSED, *ONLY_HERE])
def test_what_no_graph_can_hold_is_refused_by_name(expression: str) -> None:
    from mini_vllm.gpu import graph_standin as graphs

    known = names("cpu")
    graph = graphs.CUDAGraph()
    with pytest.raises(graphs.GraphError) as caught, graphs.graph(graph):
        eval(expression, known)
    assert caught.value.rule == (REFUSED | ONLY_HERE)[expression]
    assert not graphs.is_current_stream_capturing(), "the capture that broke off is still on"
    with pytest.raises(graphs.GraphError, match="not captured"):
        graph.replay()


@pytest.mark.gpu
@pytest.mark.parametrize("expression", [e for e in REFUSED if e != "graphs.synchronize()"])
def test_a_gpu_refuses_the_same(expression: str) -> None:
    import os
    import subprocess
    import sys
    from pathlib import Path

    # In a process of its own: a capture that breaks off may leave the device unusable.
    code = (
        "from tests.engine.gpu.test_graph_standin import names\n"
        "import torch; known = names('cuda'); graph = torch.cuda.CUDAGraph()\n"
        f"with torch.cuda.graph(graph): eval({expression!r}, known)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "captur" in ran.stderr.lower(), f"it failed otherwise: {ran.stderr[-500:]}"
    assert ran.returncode != 0, f"a GPU captures {expression}: the stand-in is too strict"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("expression", ALLOWED)
def test_what_a_graph_can_hold_is_replayed(expression: str, device: str) -> None:
    """The same numbers as without a graph, for two inputs; and the capture itself changes nothing."""
    import torch

    known = names(device)
    graphs, x = known["graphs"], known["x"]
    before = x.clone()
    graph = graphs.CUDAGraph()
    eval(expression, known | {"x": x.clone()})  # a GPU loads its libraries before a capture
    with torch.inference_mode(), graphs.graph(graph):
        result = eval(expression, known)
    assert torch.equal(x, before), "the capture has run"
    for numbers in (before, before.flip(0)):
        x.copy_(numbers)
        graph.replay()
        graphs.synchronize()
        found, found_x = [t.clone() for t in tensors(result)], x.clone()
        x.copy_(numbers)
        want = eval(expression, known)
        assert torch.equal(found_x, x)
        for mine, right in zip(found, tensors(want), strict=True):
            assert torch.allclose(mine, right, equal_nan=True)


def tensors(tree: Any) -> list[Any]:
    from mini_vllm.gpu.standin.rules import tensors_of

    return tensors_of(tree)


def test_nothing_is_there_before_a_replay() -> None:
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(3)
    graph = graphs.CUDAGraph()
    with graphs.graph(graph):
        y = x + 1
    assert y.isnan().all()
    with pytest.raises(graphs.GraphError, match="not yet computed") as caught, graphs.watch():
        y.tolist()
    assert caught.value.rule == "not yet computed"
    graph.replay()
    with graphs.watch():
        assert y.tolist() == [2, 2, 2]
        assert (y * 2).tolist() == [4, 4, 4]


def test_a_rebound_input_is_noticed() -> None:
    """The name has a new tensor, the graph the old address: on a GPU somebody else's memory by then."""
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(3)
    kept = torch.ones(3)
    first, second = graphs.CUDAGraph(), graphs.CUDAGraph()
    for graph in (first, second):
        with graphs.graph(graph):
            y = x[:2] + kept[1:]
    first.replay()
    x = torch.zeros(3)
    with pytest.raises(graphs.GraphError, match=r"freed memory: graph \d+ .*a tensor of \[2\]"):
        second.replay()
    del first, graph
    gc.collect()
    with pytest.raises(graphs.GraphError, match="freed memory"):
        second.replay()
    assert y.shape == (2,)


def test_a_view_that_is_held_is_enough() -> None:
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(3)
    view = x[1:]
    graph = graphs.CUDAGraph()
    with graphs.graph(graph):
        y = x + 1
    del x
    graph.replay()
    assert y.tolist() == [2, 2, 2]
    view.fill_(5)
    graph.replay()
    assert y.tolist() == [2, 6, 6]


def test_memory_that_has_moved_is_noticed() -> None:
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(3)
    graph = graphs.CUDAGraph()
    with graphs.graph(graph):
        y = x + 1
    x.resize_(1000)
    with pytest.raises(graphs.GraphError, match="moved memory"):
        graph.replay()
    assert y.isnan().all()


def test_one_capture_at_a_time_and_one_recording_a_graph() -> None:
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(4)
    graph, other = graphs.CUDAGraph(), graphs.CUDAGraph()
    with pytest.raises(graphs.GraphError, match="not captured"):
        graph.replay()
    with graphs.graph(graph):
        y = x + 1
    with pytest.raises(graphs.GraphError, match="captured twice"), graphs.graph(graph):
        pass
    with (
        pytest.raises(graphs.GraphError, match="one capture at a time"),
        graphs.graph(other),
        graphs.graph(graphs.CUDAGraph()),
    ):
        pass
    with pytest.raises(graphs.GraphError, match="one capture at a time"), graphs.graph(other):
        graph.replay()
    assert not graphs.is_current_stream_capturing()
    graph.replay()
    graph.reset()
    with pytest.raises(graphs.GraphError, match="not captured"):
        graph.replay()
    with graphs.graph(graph, pool=other.pool() if other.recorded else None):
        y = x + 2
    graph.replay()
    assert y.tolist() == [3, 3, 3, 3]


def test_a_replay_that_fails_says_where() -> None:
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    ids, table = torch.zeros(2, dtype=torch.int64), torch.ones(3, 4)
    graph = graphs.CUDAGraph()
    with graphs.graph(graph):
        torch.nn.functional.embedding(ids, table)
    ids.fill_(7)
    with pytest.raises(IndexError) as caught:
        graph.replay()
    assert "operation 0, aten.embedding" in caught.value.__notes__[0]


def test_an_error_names_the_line() -> None:
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(4)
    with (
        pytest.raises(graphs.GraphError, match=r"test_graph_standin.py, line \d+"),
        graphs.graph(graphs.CUDAGraph()),
    ):
        x.sum().item()
