"""Every lane loads the word that its code lies in, so each word is loaded eight times.

It is the obvious way to unpack: input i lies in word i // 8. The neighbours find the word in a cache, so
hardly a byte more comes from memory. But a load brings 32 bits for 4 that are wanted, and none can be wide.

Refused by `test_compiles_for_four_gpus`.
"""

from course.learner.edited import edited

CHANGE = """
w4a16_kernel
- packed_at = output[:, None] * packed_stride + (start // 8 + word)[None, :]
- packed = tl.load(packed_ptr + packed_at, mask=in_packed, other=0)
+ packed_at = output[:, None] * packed_stride + ((start + place) // 8)[None, :]
+ in_words = in_outputs[:, None] & (before + place < GROUP)[None, :]
+ packed = tl.load(packed_ptr + packed_at, mask=in_words, other=0)

w4a16_kernel
- weight = unpack(packed, BLOCK_N, BLOCK_K).to(x.dtype)
+ weight = (((packed >> (place % 8 * 4)[None, :]) & 15) - 8).to(x.dtype)
"""

exec(edited(__file__, CHANGE))
