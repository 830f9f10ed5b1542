"""The stand-in's pool: graphs that share memory write over each other, and whoever reads too late is told."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch


def test_graphs_of_one_pool_write_over_each_other() -> None:
    """The output of one is good up to the replay of another, and an error names both."""
    import torch

    from mini_vllm.gpu import graph_standin as graphs
    from mini_vllm.gpu.weak_ref import weak_ref_tensors

    x = torch.ones(600)
    pool = graphs.graph_pool_handle()
    outputs, captured = [], []
    for size in (600, 300):
        graph = graphs.CUDAGraph()
        with graphs.graph(graph, pool=pool):
            y = (x[:size] + 1) * 2
        outputs.append(weak_ref_tensors(y))
        captured.append(graph)
        del y
    captured[0].replay()
    with graphs.watch():
        assert outputs[0].sum().item() == 4 * 600
    captured[1].replay()
    with graphs.watch():
        assert outputs[1].sum().item() == 4 * 300
    assert outputs[0].isnan().any()
    gone = rf"graph {captured[0].number} makes: overwritten by the replay of graph {captured[1].number}"
    with pytest.raises(graphs.GraphError, match=gone), graphs.watch():
        outputs[0].sum()


def test_a_part_of_an_output_is_of_the_graph_that_made_the_whole() -> None:
    """As V is of q, k and v side by side; another graph once had a tensor in just these bytes."""
    import torch

    from mini_vllm.gpu import graph_standin as graphs
    from mini_vllm.gpu.weak_ref import weak_ref_tensors

    x = torch.ones(2, 128)  # of float32: a row is the least that a pool hands out
    pool = graphs.graph_pool_handle()
    first, second = graphs.CUDAGraph(), graphs.CUDAGraph()
    with graphs.graph(first, pool=pool):
        y, z = x[0] + 1, x[1] + 1
    del y, z
    with graphs.graph(second, pool=pool):
        both = x * 2
    output = weak_ref_tensors(both[1])
    del both
    second.replay()
    with graphs.watch():
        assert output.sum().item() == 2 * 128
    first.replay()
    gone = rf"graph {second.number} makes: overwritten by the replay of graph {first.number}"
    with pytest.raises(graphs.GraphError, match=gone), graphs.watch():
        output.sum()


def test_a_graph_may_read_what_another_of_its_pool_has_made() -> None:
    """In the order of the capture: piece after piece. Out of order it is refused."""
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(4)
    pool = graphs.graph_pool_handle()
    first, second, third = (graphs.CUDAGraph() for _ in range(3))
    with graphs.graph(first, pool=pool):
        y = x + 1
    with graphs.graph(second, pool=pool):
        z = y * 10
    with pytest.raises(graphs.GraphError, match="not yet computed"):
        second.replay()
    for number in (1.0, 2.0):
        x.fill_(number)
        first.replay()
        y.add_(1)  # what stands between two pieces writes into the first one's memory
        second.replay()
        assert z.tolist() == [10 * (number + 2)] * 4
    del y
    with graphs.graph(third, pool=pool):
        _ = x - 1
    first.replay()
    third.replay()
    with pytest.raises(graphs.GraphError, match="overwritten by the replay of graph"):
        second.replay()


def test_a_graph_may_read_what_is_let_go_of_in_its_capture() -> None:
    """The last reader of a tensor of another graph: it is there at the replay, and gone after it."""
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(4)
    pool = graphs.graph_pool_handle()
    first, second, third = (graphs.CUDAGraph() for _ in range(3))
    with graphs.graph(first, pool=pool):
        y = x + 1
    with graphs.graph(second, pool=pool):
        z = y * 10
        del y
        u = x - 1
    with graphs.graph(third, pool=pool):
        v = z + u
    for number in (1.0, 2.0):
        x.fill_(number)
        first.replay()
        second.replay()
        third.replay()
        assert v.tolist() == [10 * (number + 1) + number - 1] * 4
    with pytest.raises(graphs.GraphError, match="overwritten by the replay of graph"):
        second.replay()


def test_memory_that_is_free_is_used_again() -> None:
    """Largest first, the small ones fit into it; smallest first, each takes more."""
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(4096)

    def taken(sizes: list[int]) -> int:
        pool = graphs.graph_pool_handle()
        made = []
        for size in sizes:
            made.append(graphs.CUDAGraph())
            with graphs.graph(made[-1], pool=pool):
                y = (x[:size] + 1).exp()
                del y
        return graphs.MemPool.of(pool).reserved_bytes()

    usual = graphs.MemPool.segment_bytes
    graphs.MemPool.segment_bytes = 512
    try:
        assert taken([4096, 1024, 256]) == taken([4096]) == 2 * 4 * 4096
        assert taken([256, 1024, 4096]) == 2 * 4 * (256 + 1024 + 4096)
    finally:
        graphs.MemPool.segment_bytes = usual


def test_what_is_made_in_a_capture_belongs_to_its_graph() -> None:
    """A tensor that the first call makes: with the warm-up it is there, without it only a replay makes it."""
    import torch

    from mini_vllm.gpu import graph_standin as graphs

    x = torch.ones(4)
    kept: dict[str, Any] = {}

    def function(n: int) -> Any:
        if "table" not in kept:
            kept["table"] = torch.arange(4) + 0.5
        return x[:n] * kept["table"][:n]

    first, second = graphs.CUDAGraph(), graphs.CUDAGraph()
    pool = graphs.graph_pool_handle()
    with graphs.graph(first, pool=pool):
        function(4)
    with graphs.graph(second, pool=pool):
        y = function(2)
    with pytest.raises(graphs.GraphError, match="not yet computed"):
        second.replay()
    kept.clear()
    function(4)
    third = graphs.CUDAGraph()
    with graphs.graph(third, pool=pool):
        y = function(2)
    third.replay()
    assert y.tolist() == [0.5, 1.5]
