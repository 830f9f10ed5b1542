"""A mean over the documents.

A text of three tokens weighs as much as one of three hundred, and short texts are the surprising ones.

Refused by `test_every_token_counts_once`.
"""

from course.learner.edited import edited

CHANGE = """
perplexity
- return math.exp(sum(nats) / sum(tokens))
+ return math.exp(sum(n / t for n, t in zip(nats, tokens, strict=True)) / len(nats))
"""

exec(edited(__file__, CHANGE))
