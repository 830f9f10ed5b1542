"""Real vLLM with several engines on this machine: their tokens, and what engines that step together say.

    python tests/engine/helpers/real_vllm/engines_child.py JOB

JOB is a JSON file: the model's folder, prompts as token ids, arguments of `AsyncEngineArgs`, how many tokens
each is to get, how many of the prompts are to be asked alone, and a folder. Printed is, as one line of JSON,
the tokens of all prompts asked at once, and which engine each was sent to; and for the prompts that are then
asked one after the other, of each engine and rank every call between engines, with how often it was made.

On a CPU the pin has no all-gather of different sizes, and no reduce-scatter
(`vllm/distributed/device_communicators/base_device_communicator.py:209 DeviceCommunicatorBase.all_gatherv`),
so engines that share experts end at once. Both are put in here, made of torch's own calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any


def give_the_cpu_both_calls() -> None:
    import torch
    from torch import distributed
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    def all_gatherv(self: Any, given: Any, dim: int = 0, sizes: Any = None) -> Any:
        several = isinstance(given, list)
        found = []
        for tensor in given if several else [given]:
            note(self, "all_gatherv", tensor)
            longest = max(sizes)
            padded = tensor.new_zeros((longest, *tensor.shape[1:]))
            padded[: len(tensor)] = tensor
            parts = [torch.empty_like(padded) for _ in sizes]
            distributed.all_gather(parts, padded, group=self.device_group)
            found.append(torch.cat([p[:n] for p, n in zip(parts, sizes, strict=True)]))
        return found if several else found[0]

    def reduce_scatterv(self: Any, tensor: Any, dim: int = -1, sizes: Any = None) -> Any:
        note(self, "reduce_scatterv", tensor)
        total = tensor.clone()
        distributed.all_reduce(total, group=self.device_group)
        start = sum(sizes[: self.rank_in_group])
        return total[start : start + sizes[self.rank_in_group]].contiguous()

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv


NOTED: dict[str, int] = {}


def note(_: Any, kind: str, tensor: Any) -> None:
    key = json.dumps([kind, list(tensor.shape), tensor.numel() * tensor.element_size()])
    NOTED[key] = NOTED.get(key, 0) + 1


def watch(worker: Any) -> None:
    """In a rank: forget what was noted before, and note how many tokens each engine has, too."""
    from vllm.v1.worker import dp_utils

    module = sys.modules["__mp_main__" if "__mp_main__" in sys.modules else "__main__"]
    module.NOTED.clear()
    run_ar = dp_utils._run_ar

    def noted(*args: Any, **kwargs: Any) -> Any:
        tensor = run_ar(*args, **kwargs)
        module.note(None, "all_reduce", tensor)
        return tensor

    dp_utils._run_ar = noted


def write(worker: Any, folder: str) -> None:
    """In a rank: write down what was noted since."""
    parallel = worker.vllm_config.parallel_config
    place = f"{parallel.data_parallel_rank}-{worker.rank % parallel.tensor_parallel_size}"
    module = sys.modules["__mp_main__" if "__mp_main__" in sys.modules else "__main__"]
    calls = [[*json.loads(key), times] for key, times in module.NOTED.items()]
    path = Path(folder) / f"{place}.new"
    path.write_text(json.dumps(calls), encoding="utf-8")
    path.replace(Path(folder) / f"{place}.json")


async def read(llm: Any, folder: str) -> dict[str, Any]:
    await llm.collective_rpc(write, args=(folder,))
    return {p.stem: json.loads(p.read_text("utf-8")) for p in sorted(Path(folder).glob("*.json"))}


async def main(job: dict[str, Any]) -> None:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args = AsyncEngineArgs(
        model=job["model"], dtype="float32", enforce_eager=True, distributed_executor_backend="mp",
        async_scheduling=False, **job["settings"],
    )  # fmt: skip
    llm = AsyncLLM.from_engine_args(args)
    client: Any = llm.engine_core
    chosen: list[int] = []
    choose = client.get_core_engine_for_request

    def choose_noted(request: Any) -> Any:
        engine = choose(request)
        chosen.append(client.core_engines.index(engine))
        return engine

    client.get_core_engine_for_request = choose_noted
    greedy = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)

    async def ask(number: int, name: str) -> list[int]:
        ids: list[int] = []
        async for output in llm.generate(
            {"prompt_token_ids": job["prompts"][number]}, greedy, name
        ):
            ids = list(output.outputs[0].token_ids)
        return ids

    tokens = await asyncio.gather(*(ask(i, str(i)) for i in range(len(job["prompts"]))))
    calls: dict[str, Any] = {}
    if job["alone"]:
        await come_to_rest(llm, job["folder"])
        await llm.collective_rpc(watch)
        for i in range(job["alone"]):
            await ask(i, f"alone-{i}")
            calls = await come_to_rest(llm, job["folder"])
    print(json.dumps({"tokens": tokens, "chosen": chosen, "calls": calls}), flush=True)
    llm.shutdown()


async def come_to_rest(llm: Any, folder: str) -> dict[str, Any]:
    """Wait until the engines' wave is over; what was noted by then."""
    before = None
    while (now := await read(llm, folder)) != before:
        before = now
        await asyncio.sleep(1)
    return now


def be_patient() -> None:
    """The process between front end and engines has 30 seconds to start
    (`vllm/v1/engine/coordinator.py:59 DPCoordinator._wait_for_zmq_addrs`): too little on a busy machine."""
    from multiprocessing import connection

    module: Any = connection
    wait = module.wait
    module.wait = lambda given, timeout=None: wait(given, 10 * timeout if timeout else timeout)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    os.environ["ENGINES_CHILD_SHARES_EXPERTS"] = str(bool(given["alone"]))
    be_patient()
if os.environ.get("ENGINES_CHILD_SHARES_EXPERTS") == "True":  # in those of engines and ranks, too
    from course.parity.experts_run import route_to_own_experts

    route_to_own_experts()
    give_the_cpu_both_calls()
if __name__ == "__main__":
    asyncio.run(main(given))
