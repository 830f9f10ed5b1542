"""Guesses of the next tokens, which the model checks in the step that it would have run anyway.

Mirrors `vllm/v1/spec_decode/`. Who judges the guesses is in `sample/rejection_sampler.py`; who plans them is
the scheduler.
"""
