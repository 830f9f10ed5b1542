"""A notebook in the place of `torch.cuda.CUDAGraph`, so that vLLM's graph wrapper can be run without a GPU.

In a capture, PyTorch's dispatcher shows it each operator with its arguments and results, and it writes them
down. A replay calls them again on the very tensors of the capture and puts the results where the first ones
were; no Python of the captured function runs. Unlike a GPU it computes during the capture, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def standing_in() -> Iterator[list[str]]:
    """Run with notebooks for graphs.

    Yields:
        a list that gains "captured N operators" and "replayed N operators", for the reader to clear.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten
    from vllm.platforms import current_platform

    log: list[str] = []

    class Notebook(TorchDispatchMode):  # type: ignore[misc]
        """One recorded graph: operators with their arguments and what they returned."""

        def __init__(self) -> None:
            super().__init__()
            self.lines: list[tuple[Any, Any, Any, Any]] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            self.lines.append((func, args, kwargs or {}, out))
            return out

        def replay(self) -> None:
            for func, args, kwargs, kept in self.lines:
                again = func(*args, **kwargs)
                for old, new in zip(tree_flatten(kept)[0], tree_flatten(again)[0], strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            log.append(f"replayed {len(self.lines)} operators")

    @contextmanager
    def graph(notebook: Any, pool: Any = None, stream: Any = None) -> Iterator[None]:
        with notebook:
            yield
        log.append(f"captured {len(notebook.lines)} operators")

    platform = type(current_platform)
    with (
        patch("torch.cuda.CUDAGraph", Notebook),
        patch("torch.cuda.graph", graph),
        # a pool's handle and the current stream, which only a GPU has; and the extension that keeps an
        # output without owning it
        patch.object(platform, "graph_pool_handle", classmethod(lambda cls: (0, 0)), create=True),
        patch("vllm.compilation.cuda_graph.current_stream", lambda: None),
        patch("vllm.compilation.cuda_graph.set_graph_pool_id", lambda pool: None),
        patch("vllm.compilation.cuda_graph.weak_ref_tensors", lambda tensors: tensors),
    ):
        yield log
