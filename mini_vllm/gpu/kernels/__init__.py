"""Triton kernels. Each file needs torch and Triton, and defines what its name says."""
