"""It searches by halves.

Halving is right only where a scheme is faster up to some number and slower from there on. Beside 4 bits fp8
is slower first and faster later.

Refused by `test_4_bits_beside_8`.
"""

from course.learner.edited import edited

CHANGE = """
break_even
- for tokens in range(1, most + 1):
-     mine = max(linears_seconds(card, scheme, 1, tokens))
-     if mine >= max(linears_seconds(card, other, 1, tokens)):
-         return tokens
- return None
+ first, last = 1, most + 1
+ while first < last:
+     tokens = (first + last) // 2
+     mine = max(linears_seconds(card, scheme, 1, tokens))
+     if mine >= max(linears_seconds(card, other, 1, tokens)):
+         last = tokens
+     else:
+         first = tokens + 1
+ return first if first <= most else None
"""

exec(edited(__file__, CHANGE))
