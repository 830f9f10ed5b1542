"""Grammars: which tokens a request's rule allows next, as rows of bits. A run without rules loads none of it.

A rule (`mini_vllm/utils/structured_params.py`) becomes a key (`request.py`), a backend compiles it
(`backend_native.py`, `backend_xgrammar.py`, `backend_guidance.py`) in the background (`manager.py`), and the
grammar that comes out (`backend_types.py`) fills a row per token that is to be drawn. Before the sampler the
rows are put into the batch's order and every barred logit becomes -inf (`utils.py`). What of this happens
when in a step stands in `scheduling.py`, and how a request waits for its grammar in `admission.py`.
"""
