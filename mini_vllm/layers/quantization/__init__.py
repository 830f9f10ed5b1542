"""Numbers in fewer bits: the grid, the files and the layers of quantised weights; the KV cache's formats.

Mirrors `vllm/model_executor/layers/quantization/` and the package compressed-tensors, whose names it
keeps. Storage is small; the arithmetic stays float32. numpy alone: torch has its place in `gpu/`.
"""
