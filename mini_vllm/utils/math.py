"""Arithmetic that every room needs.

Mirrors `vllm/utils/math_utils.py`.
"""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(a // -b)
