"""Lab 03-07: your test of the incident on real vLLM's scheduler.

    python phase-03-scheduler/labs/lab-07-incident-the-text-that-changed/against_vllm.py
    python ….py --impl starter

The scheduler is vLLM's own, with its own block pool; the worker is the one of worker.py, without a model.
Your test has to fail. Needs vLLM (SETUP.md). Nothing here is graded.
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
    from course.fuzz.engine_vllm import Vllm

    class VllmEngine(support.Engine):  # type: ignore[misc]
        """vLLM's scheduler, synchronous."""

        def make_driver(self, world: Any) -> Any:
            return Vllm(world)

    return VllmEngine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    args = parser.parse_args()
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(args.impl, Path(args.impl)), "lab_03_07_against_vllm")
    support = load_module(HERE / "support.py", "lab_03_07_support")
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
