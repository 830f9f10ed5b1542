"""The salt counts for the first block, and for those behind it the tokens alone.

vLLM hashes it into the first block only, that is true. But each block's hash contains the one before,
so whoever has another salt has other hashes in every block.

Refused by `test_salts_keep_apart`.
"""

from course.learner.edited import edited

CHANGE = """
found_tokens
- if (visit.salt, start) not in written:
+ if (visit.salt if len(start) == block_size else None, start) not in written:

found_tokens
- written |= {(visit.salt, start) for start in _blocks(_written(visit), block_size)}
+ written |= {
+     (visit.salt if len(start) == block_size else None, start)
+     for start in _blocks(_written(visit), block_size)
+ }
"""

exec(edited(__file__, CHANGE))
