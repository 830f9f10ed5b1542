"""This package's version (`vllm/version.py` upstream)."""

__version__ = "0.1.0"
__version_tuple__ = (0, 1, 0)
