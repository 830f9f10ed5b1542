"""Given: the CPU's communicator, without the shared memory that two machines do not have.

vLLM uses that memory where all ranks call it by one name, and makes the name of a port that all of them were
given. So it is used here too, where both nodes are one machine; two machines would need what comes now.
"""

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class NetworkCommunicator(CpuCommunicator):
    """Gloo, over TCP."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False
