"""A decode step reads the KV cache of one request, however many are in the batch.

The weights are shared: that is why batching pays. The caches are not. 64 requests of 8,192 tokens read
64 caches of 1 GiB, four times the weights of an 8B model. The KV term is batch times context.

Refused by `test_long_context_wall`.
"""

from __future__ import annotations

from course.learner.labs import load_solution

solution = load_solution(__file__)


def decode_tokens_per_second(device, model, batch, context=0):  # type: ignore[no-untyped-def]
    return batch / solution.step_time(device, model, batch, context)


def long_context_wall(model, batch):  # type: ignore[no-untyped-def]
    return solution.long_context_wall(model, 1)


def __getattr__(name: str) -> object:
    return getattr(solution, name)
