"""What a kernel may be asked to solve. Each problem is a module, loaded in the children only.

It lies in the folder of its phase: `course.kernels.problems.decode` is phase-02-…/kernels/decode.py.

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
    READS           files outside of its folder and of course/kernels/ that its cases are made with
    rules(case, launches, got)   sentences about what the log shows, when the numbers are right
"""

from pathlib import Path

# Where Python looks for the modules of this package.
__path__ = [str(f) for f in sorted(Path(__file__).resolve().parents[3].glob("phase-*/kernels"))]

# name -> module
PROBLEMS = {
    "decode": "course.kernels.problems.decode",
    "decode-one": "course.kernels.problems.decode_one",
    "split-decode": "course.kernels.problems.split_decode",
    "prefill": "course.kernels.problems.prefill",
    "w4a16": "course.kernels.problems.w4a16",
    "fused-moe": "course.kernels.problems.fused_moe",
    "gumbel": "course.kernels.problems.gumbel",
}
# What times the kernels of a problem on a GPU, if not benchmarks.attention.
BENCHMARKS = {
    "w4a16": "-m benchmarks.quantization",
    "fused-moe": "phase-07-gemm-and-moe/labs/lab-04-triton-fused-moe/show.py --device cuda",
    "gumbel": "phase-09-sampling/labs/lab-07-triton-gumbel/show.py --device cuda",
}
