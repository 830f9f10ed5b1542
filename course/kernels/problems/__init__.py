"""What a kernel may be asked to solve. Each problem is a module, loaded in the children only.

It lies in the folder of its phase, and its name is that of its file: `decode-one` is the module
`course.kernels.problems.decode_one`, in phase-02-…/kernels/decode_one.py.

A problem's module defines

    ENTRY           the function that a kernel file must define
    NEEDED          the names of the tensors whose every live byte a kernel must read
    MOST_BYTES      how many times the least bytes it may load and store
    cases()         small ragged cases, to be right on (a list of `Case`)
    traffic()       one long case, on which bytes are counted
    shape()         one of a real model, to be compiled for
    vllm(case, segments)   vLLM's own kernel on a case; segments=0 asks for the one without a split
    explain(case, got)     the mistake that gives this output, in words, or None
    ALLOWS          the least and the largest value that the contract allows, by quantity
    measure(case)   the least and the largest of these quantities in a case

and may define

    FORMS           the forms of vLLM's kernel to run, if not both: {"2D": 0}
    TENSOR_CORE     True: from sm_80 on, a kernel that reads NEEDED must use tensor cores
    YARDSTICK       what `least` of its cases is, in words, if it is more than the least there is
    WIDE            what must be loaded 128 bits at a time, in words, if not "the caches"
    COUNTED         instructions of the main loop that the table counts
    THEIR_FOLDER     of vLLM's package, where its kernel for this stands, if not v1/attention/ops
    BENCHMARK       what times its kernels on a GPU, if not "-m benchmarks.attention"
    READS           files outside of its folder and of course/kernels/ that its cases are made with
    rules(case, launches, got)   sentences about what the log shows, when the numbers are right
"""

from __future__ import annotations

import ast
from pathlib import Path

# Where Python looks for the modules of this package.
__path__ = [str(f) for f in sorted(Path(__file__).resolve().parents[3].glob("phase-*/kernels"))]


def _strings(file: Path) -> dict[str, str]:
    """What a module calls a string at its top, read and not run: it imports torch."""
    found = {}
    for node in ast.parse(file.read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                found[name] = text
    return found


PROBLEMS: dict[str, str] = {}  # name -> module
ENTRIES: dict[str, str] = {}  # name -> the function that a kernel file must define
BENCHMARKS: dict[str, str] = {}  # name -> what times its kernels on a GPU
for _file in (file for folder in __path__ for file in sorted(Path(folder).glob("*.py"))):
    _said = _strings(_file)
    if "ENTRY" in _said:  # the others stand beside a problem
        _name = _file.stem.replace("_", "-")
        PROBLEMS[_name] = f"{__name__}.{_file.stem}"
        ENTRIES[_name] = _said["ENTRY"]
        BENCHMARKS[_name] = _said.get("BENCHMARK", "-m benchmarks.attention")
