"""What does not fit is cut off and not rounded.

vLLM's CPU build on x86 writes an FP8 KV cache so. The error is twice as large on average, and always points
to zero.

Refused by `test_floats_become_codes`.
"""

from course.learner.edited import edited

CHANGE = """
encode
- steps = round(math.ldexp(magnitude, fmt.mantissa_bits - exponent))  # half to even
+ steps = int(math.ldexp(magnitude, fmt.mantissa_bits - exponent))
"""

exec(edited(__file__, CHANGE))
