"""Print the OpenBLAS core types that this processor can run, one a line.

    for type in $(python scripts/blas_core_types.py); do OPENBLAS_CORETYPE=$type python -m pytest; done

A core type is a set of kernels, and kernels round differently: two results that happen to agree on one
processor may not agree on the next. OpenBLAS takes a type from `OPENBLAS_CORETYPE` without asking whether
the processor has its instructions, and then dies of an illegal one; a name that it does not know it ignores
without a word. So a type is printed if the processor has the instructions, as numpy finds them, and a process
started with that type multiplies matrices and reports that type. numpy's wheels have no kernels for Zen, for
example: asked for Zen they run Haswell's, which are in the list already.

Nothing is printed where numpy has another BLAS or the processor is no x86-64.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection

NEEDS: dict[str, frozenset[str]] = {
    "Sandybridge": frozenset({"AVX"}),
    "Haswell": frozenset({"AVX2", "FMA3"}),
    "Zen": frozenset({"AVX2", "FMA3"}),
    "SkylakeX": frozenset({"AVX512F", "AVX512CD", "AVX512BW", "AVX512DQ", "AVX512VL"}),
}
"""Core type -> the instruction sets that its kernels use, by numpy's names."""

ASK = """
import json
import numpy
from threadpoolctl import threadpool_info
for dtype in (numpy.float32, numpy.float64):
    numpy.ones((64, 64), dtype) @ numpy.ones((64, 64), dtype)
print(json.dumps([one["architecture"] for one in threadpool_info() if one["internal_api"] == "openblas"]))
"""


def read_features() -> set[str]:
    """Instruction sets that the processor and the operating system offer, by numpy's names."""
    from numpy._core._multiarray_umath import __cpu_features__

    return {name for name, there in __cpu_features__.items() if there}


def select_types(features: Collection[str]) -> list[str]:
    """Core types whose instructions are all among `features`, the oldest first."""
    return [name for name, needs in NEEDS.items() if needs.issubset(features)]


def read_architectures(core_type: str) -> list[str]:
    """What each OpenBLAS of a new process reports that it runs, asked for `core_type`.

    Raises:
        subprocess.CalledProcessError: the process failed, for example without threadpoolctl.
    """
    env = os.environ | {"OPENBLAS_CORETYPE": core_type}
    child = subprocess.run(
        [sys.executable, "-c", ASK], env=env, stdout=subprocess.PIPE, check=True, text=True
    )
    found: list[str] = json.loads(child.stdout)
    return found


def main() -> None:
    for name in select_types(read_features()):
        if name in read_architectures(name):
            print(name)


if __name__ == "__main__":
    main()
