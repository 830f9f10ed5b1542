"""FULL graphs begin at the lowest rung, whatever a request has.

With three drafts a decode batch has 4, 8, 12 … tokens. A graph of 2 is for nobody.

Refused by `test_how_many_captures`.
"""

from course.learner.edited import edited

CHANGE = """
captures
- full = [size for size in sizes if uniform_decode_query_len <= size <= longest]
+ full = [size for size in sizes if size <= longest]
"""

exec(edited(__file__, CHANGE))
