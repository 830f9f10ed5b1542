"""The scene of lab 02-03: nine usable blocks of four tokens, and four people."""

from __future__ import annotations

from typing import Any

from mini_vllm.core.request import Request
from mini_vllm.sampling_params import SamplingParams

ADA = list(range(20, 30))
BO = [*ADA[:8], 60, 61]
EVE = [90, 91, 92, 93, *ADA[4:]]
CY = list(range(100, 128))


def grant(manager: Any, request: Request, num_tokens: int, *more: Any) -> Any:
    """`allocate_slots`; where the pool refuses to publish a block, the error says why."""
    try:
        return manager.allocate_slots(request, num_tokens, *more)
    except AssertionError as error:
        name, size, said = request.request_id, manager.block_size, str(error)
        if said.startswith("I3"):
            full = request.num_tokens // size
            raise AssertionError(
                f"{name} has {request.num_tokens} tokens, which fill {full} block{'s' * (full != 1)} of "
                f"{size}, and yours publishes more: a slot whose token is not there yet cannot be hashed"
            ) from error
        if said.endswith("is published already"):
            raise AssertionError(
                f"{said}, and yours publishes it for {name} once more: what a request found counts as "
                "published, and so does what it has published itself"
            ) from error
        raise


def what_happens(manager_class: Any) -> dict[str, Any]:
    """Play the scene on a new manager of this class; the answers, by their names in `predictions`."""
    manager = manager_class(10, 4, 64)
    happened: dict[str, Any] = {}

    def ask(name: str, prompt: list[int]) -> Request:
        return Request(name, prompt, SamplingParams(max_tokens=9), block_size=4)

    def come(name: str, prompt: list[int]) -> Request:
        request = ask(name, prompt)
        hits, num_hits = manager.get_computed_blocks(request)
        got = grant(manager, request, request.num_tokens - num_hits, num_hits, hits)
        assert got is not None, f"{name} needs fewer blocks than are free, and was refused"
        request.num_computed_tokens = request.num_tokens
        return request

    def free() -> list[int]:
        return [block.block_id for block in manager.block_pool.free_block_queue]

    ada, bo = come("ada", ADA), come("bo", BO)
    happened["ada's table"] = manager.get_block_ids("ada")[0]
    happened["bo's table"] = manager.get_block_ids("bo")[0]
    happened["ref_cnt of block 1 while both are there"] = manager.block_pool.blocks[1].ref_cnt
    happened["tokens that eve finds"] = manager.get_computed_blocks(ask("eve", EVE))[1]
    manager.free(ada)
    happened["free queue when ada has left"] = free()
    manager.free(bo)
    happened["free queue when bo has left, too"] = free()
    cy = come("cy", CY)
    happened["table of cy, who needs seven blocks"] = manager.get_block_ids("cy")[0]
    manager.free(cy)
    again = ask("ada again", ADA)
    happened["tokens that ada finds when she comes again"] = manager.get_computed_blocks(again)[1]
    return happened
