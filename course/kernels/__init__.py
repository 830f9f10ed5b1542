"""The kernel bench: a Triton kernel judged without a GPU.

    course kernel FILE --problem decode

    from course.kernels import judge
    report = judge("my_kernel.py", problem="decode")
    assert report.ok, report.refusals()

Four judges. *right*: run by Triton's interpreter on ragged cases, each shape twice, against float64 and
vLLM's own kernel.
*races*: no address that one program writes may be touched by another, unless both do so atomically.
*bytes*: loaded and stored, against the least that the shape needs. *compiled*: ahead of time for four
architectures, spills, shared memory and the width of loads read from the machine code, beside vLLM's.
How fast it is only a GPU can say: benchmarks/attention.py.

What the interpreter cannot show: races inside one program, and `tl.dot` of bfloat16 tiles, which can be
wrong there: Triton 3.6 keeps them as integers, and multiplies their bits.
"""

from course.kernels.bench import BenchError, judge, judge_many
from course.kernels.problems import PROBLEMS
from course.kernels.report import JUDGES, Finding, Report

__all__ = ["JUDGES", "PROBLEMS", "BenchError", "Finding", "Report", "judge", "judge_many"]
