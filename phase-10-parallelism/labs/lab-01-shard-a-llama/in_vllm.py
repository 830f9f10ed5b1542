"""Given: your ranks beside real vLLM's on a CPU. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   tokens and ledgers, yours beside vLLM's
    python in_vllm.py --record               write recorded.json, which the tests read

vLLM runs with synchronous scheduling, so that a request's last step is its last call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module, need_vllm

HERE = Path(__file__).resolve().parent
TINY = HERE.parents[2] / "mini_vllm/checkpoints/tiny-llama"
SIZES = (1, 2, 4)
KINDS = ("all_reduce", "all_gather", "all_gatherv", "gather", "reduce_scatter", "broadcast")


def load_support() -> ModuleType:
    return load_module(HERE / "support.py", "lab_10_01_support")


def watch(worker: Any) -> None:
    """In a rank: note from now on what its tensor-parallel group is asked for."""
    from vllm.distributed import parallel_state

    worker.noted = []
    group: Any = parallel_state.get_tp_group()
    if group.world_size == 1:
        return

    def wrap(kind: str) -> None:
        call = getattr(group.device_communicator, kind)

        def noted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            nbytes = tensor.numel() * tensor.element_size()
            worker.noted.append([kind, list(tensor.shape), nbytes])
            return call(tensor, *args, **kwargs)

        setattr(group.device_communicator, kind, noted)

    for kind in KINDS:
        if hasattr(group.device_communicator, kind):
            wrap(kind)


def read(worker: Any) -> list[Any]:
    return list(worker.noted)


def serve(size: int) -> dict[str, Any]:
    """Tokens and every rank's calls in order; run in a process of its own."""
    from vllm import LLM, SamplingParams

    support = load_support()
    llm = LLM(
        str(TINY),
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="mp",
        async_scheduling=False,
        tensor_parallel_size=size,
        max_model_len=256,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        num_gpu_blocks_override=64,
    )
    llm.collective_rpc(watch)
    params = SamplingParams(temperature=0, max_tokens=support.NUM_TOKENS, ignore_eos=True)
    prompts: list[Any] = [{"prompt_token_ids": ids} for ids in support.PROMPTS]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return {"size": size, "tokens": tokens, "calls": llm.collective_rpc(read)}


def serve_all() -> list[dict[str, Any]]:
    """Every size: the tokens, the calls of the first step in order, and how often each call was made. All
    ranks make the same calls."""
    found = []
    for size in SIZES:
        environment = os.environ | {
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(
                str(rank % (os.cpu_count() or 1)) for rank in range(size)
            ),
            "TORCH_COMPILE_DISABLE": "1",
        }
        command = [sys.executable, __file__, "--serve", str(size)]
        run = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        served = json.loads(next(x for x in run.stdout.splitlines() if x.startswith('{"size"')))
        calls = served["calls"]
        assert all(of_rank == calls[0] for of_rank in calls), "the ranks' calls differ"
        kinds = [call[0] for call in calls[0]]
        first_step = calls[0][: kinds.index("all_gather") + 1] if kinds else []
        counts = Counter((kind, tuple(shape), nbytes) for kind, shape, nbytes in calls[0])
        ledger = [[kind, list(shape), nbytes, n] for (kind, shape, nbytes), n in counts.items()]
        found.append(
            {"size": size, "tokens": served["tokens"], "first_step": first_step, "ledger": ledger}
        )
    return found


def main(which: str = "starter") -> None:
    need_vllm()
    served = serve_all()
    if which == "--record":
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in served)
        text = f'{{"vllm":"0.22.1","served":[\n{lines}\n]}}\n'
        (HERE / "recorded.json").write_text(text, "utf-8")
        return
    support = load_support()
    lab = load_module(HERE / f"{which}.py", f"lab_10_01_{which}")
    for theirs in served:
        mine = support.play(lab, theirs["size"])
        ledger = {(k, tuple(shape), nbytes): n for k, shape, nbytes, n in theirs["ledger"]}
        same = [mine.tokens == theirs["tokens"], *(of_rank == ledger for of_rank in mine.ledgers)]
        words = ["the same" if one else "other" for one in same]
        print(
            f"{theirs['size']} ranks: {words[0]} tokens; ledger by rank: {', '.join(words[1:])} "
            f"({sum(ledger.values())} calls)"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        print(json.dumps(serve(int(sys.argv[2]))), flush=True)
    else:
        main(*sys.argv[1:2])
