"""Given: your shapes beside vLLM's own. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]

vLLM's classes make each model of support.py and its slots on torch's meta device, where a tensor has a shape
and no memory. For the small models record.py does the same with running engines.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from course.learner.labs import load_module, need_vllm

HERE = Path(__file__).resolve().parent


def main(which: str = "starter") -> None:
    need_vllm()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    record = load_module(HERE / "record.py", "lab_11_03_record")
    support = record.support
    lab = load_module(HERE / f"{which}.py", f"lab_11_03_{which}")
    print("         vLLM         yours  bytes of all slots on a rank")
    for server in (*support.SERVED, *support.ON_PAPER):
        theirs = record.make_on_paper(server)["bytes"]
        model, lora = support.model_of(lab, server.model), support.config_of(lab, server)
        mine = lora.max_loras * lab.slot_bytes(model, lora, server.tp)
        print(f"{theirs:13,} {mine:13,}  {server.words()}{'' if mine == theirs else '  <--'}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
