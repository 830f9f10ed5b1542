"""Guesses of the next tokens, which the model checks in the step that it would have run anyway.

Mirrors `vllm/v1/spec_decode/`. The guesses are judged in `sample/rejection_sampler.py`, and
planned by the scheduler.
"""
