"""`VLLM_BATCH_INVARIANT=1` is thought to work on a CPU.

It puts other kernels in place of those for CUDA. vLLM starts without a word on a CPU, and computes as before.

Refused by `test_the_predictions_hold`.
"""

from course.learner.edited import edited

CHANGE = """
predictions
- "VLLM_BATCH_INVARIANT=1 on a CPU": AS_BEFORE,
+ "VLLM_BATCH_INVARIANT=1 on a CPU": GONE,
"""

exec(edited(__file__, CHANGE))
