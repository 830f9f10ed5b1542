"""Given: vLLM's CPU platform with the key that Ray asks for, and with sums that go over the network.

vLLM finds it by the entry point that lies beside it, when this folder is on PYTHONPATH. Ray counts logical
GPUs, `ray start --num-gpus 1`, and looks for none.
"""

from vllm.platforms.cpu import CpuPlatform


class RayCpuPlatform(CpuPlatform):
    """The CPU, under a key by which Ray counts devices."""

    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "ray_cpu_communicator.NetworkCommunicator"
