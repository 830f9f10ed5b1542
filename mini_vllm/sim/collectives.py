"""What a sum over cards takes: in one shot, in two, or around a ring.

    one shot    each sends its whole array to each other                   1 step,  (N-1) x bytes
    two shots   each sums one part and sends it to all                     2 steps, 2(N-1)/N x bytes
    ring        the same parts go from neighbour to neighbour              2(N-1) steps, 2(N-1)/N x bytes

A step costs the link's latency, and its bytes take their time at the link's bandwidth (alpha-beta). vLLM asks
gates first. Its own kernel takes small arrays only, priced as one shot or two; with symmetric memory, two
shots take larger ones; NCCL, here a ring, gets the rest. Lab 10-02 derives the one shot, the ring and where
they cross.

Left out: sums inside the switch, NCCL's trees, several rings, and FlashInfer's sum, which is off by default.
"""

from __future__ import annotations

from mini_vllm.sim.hardware import Card, Link

MIB = 2**20
CUSTOM_WORLD_SIZES = (2, 4, 6, 8)
"""Source: `vllm/distributed/device_communicators/custom_all_reduce.py:50 CustomAllreduce`."""
CUSTOM_MAX_BYTES = 8192 * 1024
"""Source: `vllm/distributed/device_communicators/custom_all_reduce.py:58 in CustomAllreduce.__init__`."""
CUSTOM_MAX_SIZES = {
    "9.0": {2: 64 * MIB, 4: 32 * MIB, 6: MIB // 2, 8: MIB // 4},
    "10.0": {2: 2 * MIB, 4: 2 * MIB, 6: MIB, 8: MIB},
    "10.3": {2: 4 * MIB, 4: 4 * MIB, 6: 8 * MIB, 8: 4 * MIB},
}
"""By compute capability and ranks: where symmetric memory is on, what is larger goes there
(`vllm/distributed/device_communicators/all_reduce_utils.py:31 CUSTOM_ALL_REDUCE_MAX_SIZES`)."""
SYMM_MEM_MAX_SIZES = {
    "9.0": {2: 64 * MIB, 4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB},
    "10.0": {2: 8 * MIB, 4: 32 * MIB, 6: 128 * MIB, 8: 128 * MIB},
    "10.3": {2: 4 * MIB, 4: 32 * MIB, 6: 32 * MIB, 8: 64 * MIB},
}
"""Source: `vllm/distributed/device_communicators/all_reduce_utils.py:52 SYMM_MEM_ALL_REDUCE_MAX_SIZES`."""


def one_shot_all_reduce_s(link: Link, world_size: int, nbytes: float) -> float:
    """Seconds of a sum of which each card gets all arrays."""
    return link.send_s((world_size - 1) * nbytes)


def two_shot_all_reduce_s(link: Link, world_size: int, nbytes: float) -> float:
    """Seconds of a sum of which each card gets one part of all arrays, and then the sums of the others."""
    return 2 * link.send_s((world_size - 1) * nbytes / world_size)


def ring_all_reduce_s(link: Link, world_size: int, nbytes: float) -> float:
    """Seconds of a sum around a ring."""
    return 2 * (world_size - 1) * link.send_s(nbytes / world_size)


def custom_max_bytes(card: Card, link: Link, world_size: int) -> int:
    """What an array must be smaller than for vLLM's own kernel
    (`vllm/distributed/device_communicators/custom_all_reduce.py:122 in CustomAllreduce.__init__`)."""
    if not _has_symmetric_memory(card, link, world_size):
        return CUSTOM_MAX_BYTES
    return min(CUSTOM_MAX_BYTES, CUSTOM_MAX_SIZES[card.capability][world_size])


def should_custom_all_reduce(card: Card, link: Link, world_size: int, nbytes: int) -> bool:
    """Whether vLLM's own kernel takes the sum
    (`vllm/distributed/device_communicators/custom_all_reduce.py:232 CustomAllreduce.should_custom_ar`)."""
    if world_size not in CUSTOM_WORLD_SIZES or not link.same_node or nbytes % 16:
        return False
    if world_size > 2 and not link.fully_connected:
        return False
    return nbytes < custom_max_bytes(card, link, world_size)


def _has_symmetric_memory(card: Card, link: Link, world_size: int) -> bool:
    """Whether symmetric memory is on, as it is by default with NVLink through a switch
    (`vllm/distributed/device_communicators/symm_mem.py:25 SymmMemCommunicator`)."""
    return link.fully_connected and world_size in SYMM_MEM_MAX_SIZES.get(card.capability, {})


def all_reduce_ways(card: Card, link: Link, world_size: int, nbytes: int) -> dict[str, float]:
    """Seconds of a sum, in each way that vLLM has for it: `ring`, `one_shot`, `two_shot`.

    Its gates, one behind the other:
    `vllm/distributed/device_communicators/cuda_communicator.py:241 CudaCommunicator.all_reduce`.
    """
    ways = {"ring": ring_all_reduce_s(link, world_size, nbytes)}
    custom = should_custom_all_reduce(card, link, world_size, nbytes)
    if custom:
        ways["one_shot"] = one_shot_all_reduce_s(link, world_size, nbytes)
    symmetric = _has_symmetric_memory(card, link, world_size)
    if custom or (symmetric and nbytes <= SYMM_MEM_MAX_SIZES[card.capability][world_size]):
        ways["two_shot"] = two_shot_all_reduce_s(link, world_size, nbytes)
    return ways


def all_reduce_s(card: Card, link: Link, world_size: int, nbytes: int) -> float:
    """Seconds of a sum, in the fastest of these ways; 0 for one rank."""
    return min(all_reduce_ways(card, link, world_size, nbytes).values()) if world_size > 1 else 0.0


def all_gather_s(link: Link, world_size: int, nbytes: float) -> float:
    """Seconds until each card has each other's array of so many bytes, around the ring: the gates are for
    sums alone."""
    return (world_size - 1) * link.send_s(nbytes)
