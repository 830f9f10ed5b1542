"""Linear layers whose weights are stored in 8 or 4 bits: the grid, the files, the layers.

Mirrors `vllm/model_executor/layers/quantization/` and the package compressed-tensors, whose names it
keeps. Storage is small; the arithmetic stays float32.
"""
