"""Real vLLM on several ranks of this machine: its tokens, and what its ranks say to each other.

    python tests/engine/helpers/real_vllm/ranks_child.py JOB

JOB is a JSON file: the model's folder, prompts as token ids, `LLM`'s settings, and how many tokens each is to
get. Printed is, as one line of JSON, the tokens, and of each rank every call with how often it was made.

vLLM's CPU build has a road through shared memory for what a stage hands on, which sends arrays whole. It is
switched off here, so that they go as on a GPU, each rank's share by itself
(`vllm/distributed/parallel_state.py:885 in GroupCoordinator.isend_tensor_dict`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def watch(worker: Any) -> str:
    """In a rank: note from now on what goes through the two groups."""
    from collections import Counter

    import torch
    from vllm.distributed import parallel_state

    calls: Counter[tuple[str, str, tuple[int, ...], int]] = Counter()
    worker.noted_calls = calls

    def note(group: str, kind: str, tensor: Any) -> None:
        calls[group, kind, tuple(tensor.shape), tensor.numel() * tensor.element_size()] += 1

    def wrap(communicator: Any, kind: str) -> None:
        call = getattr(communicator, kind)

        def noted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            note("tensor", kind, tensor)
            return call(tensor, *args, **kwargs)

        setattr(communicator, kind, noted)

    tensor_group: Any = parallel_state.get_tp_group()
    if tensor_group.world_size > 1:
        kinds = ("all_reduce", "all_gather", "all_gatherv", "gather", "reduce_scatter", "broadcast")
        for kind in kinds:
            if hasattr(tensor_group.device_communicator, kind):
                wrap(tensor_group.device_communicator, kind)
    pipeline: Any = parallel_state.get_pp_group()
    pipeline.use_cpu_custom_send_recv = False
    torch_isend, send = torch.distributed.isend, pipeline.isend_tensor_dict

    def send_noted(*args: Any, **kwargs: Any) -> Any:
        def isend(tensor: Any, *a: Any, **k: Any) -> Any:
            note("pipeline", "send", tensor)
            return torch_isend(tensor, *a, **k)

        torch.distributed.isend = isend
        try:
            return send(*args, **kwargs)
        finally:
            torch.distributed.isend = torch_isend

    pipeline.isend_tensor_dict = send_noted
    return type(tensor_group.device_communicator).__name__


def read(worker: Any) -> list[Any]:
    return [[*call, times] for call, times in worker.noted_calls.items()]


def main(job: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        job["model"], dtype="float32", enforce_eager=True, distributed_executor_backend="mp",
        async_scheduling=False, **job["settings"],
    )  # fmt: skip
    llm.collective_rpc(watch)
    greedy = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in job["prompts"]], greedy, use_tqdm=False
    )
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    print(json.dumps({"tokens": tokens, "calls": llm.collective_rpc(read)}), flush=True)


if __name__ in ("__main__", "__mp_main__"):  # here, and in each rank's process
    from course.parity.experts_run import route_to_own_experts
    from course.parity.tokens_run import lift_the_fault

    lift_the_fault()
    route_to_own_experts()
if __name__ == "__main__":
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    main(json.loads(Path(sys.argv[1]).read_text()))
