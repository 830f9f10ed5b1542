"""Lab 02-08: your test of the incident on real vLLM's scheduler.

    python phase-02-paged-attention/labs/lab-08-incident-the-request-that-never-ran/against_vllm.py
    python ….py --impl starter

The scheduler is vLLM's own, with its own block pool and no model: your test asks for pools, and sees
requests end or not. It has to fail. Needs vLLM (SETUP.md). Nothing here is graded.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "DO_NOT_TRACK": "1"}

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402


def vllm_engine(support: Any) -> Any:
    """The engine of support.py around vLLM's scheduler."""
    from course.parity.record import vllm_parts

    class VllmEngine(support.Engine):  # type: ignore[misc]
        """vLLM's scheduler, which accepts whatever comes."""

        def make_parts(self) -> Any:
            made = support.config(self.num_gpu_blocks, self.block_size, self.max_model_len)
            return vllm_parts(made)

    return VllmEngine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    args = parser.parse_args()
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(args.impl, Path(args.impl)), "lab_02_08_against_vllm")
    support = load_module(HERE / "support.py", "lab_02_08_support")
    try:
        import vllm
    except ImportError:
        raise SystemExit("vllm is not installed here; see SETUP.md") from None
    try:
        lab.incident_test(vllm_engine(support))
    except AssertionError as error:
        print(f"vLLM {vllm.__version__}: your test fails, as it should")
        print(f"  {error}")
    else:
        print(f"vLLM {vllm.__version__}: your test passes, so it has not caught the incident")


if __name__ == "__main__":
    run_script(main)
