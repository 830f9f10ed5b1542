"""A request's random stream: torch's on a CPU, to the last bit, from numpy.

Mirrors `torch.Generator` with `manual_seed`, as vLLM makes one for each seeded request
(`vllm/v1/worker/gpu_model_runner.py:1195 in GPUModelRunner._update_states`), and two of its
draws: `Tensor.exponential_`, which the sampler uses, and `Tensor.uniform_` in float64, which the rejection
sampler uses. torch's CPU generator is MT19937; a number takes two of its 32-bit draws, the first one high,
and is made of their low 53 bits. A GPU's generator is another (Philox), so tokens are equal to vLLM's on a
CPU and not to a GPU's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_LOW_53_BITS = np.uint64((1 << 53) - 1)
_LEAST_DRAWN = 2048


class TorchGenerator:
    """Draws what `torch.Generator().manual_seed(seed)` draws on a CPU.

    Args:
        seed: any integer; its low 32 bits count, as in torch's CPU generator.
    """

    def __init__(self, seed: int) -> None:
        bit_generator = np.random.MT19937(0)
        # numpy's older interface seeds MT19937 by the rule of its authors, and so does torch.
        np.random.RandomState(bit_generator).seed(seed & 0xFFFFFFFF)
        self._generator = np.random.Generator(bit_generator)
        self._ahead = np.empty(0, np.int64)  # drawn and not handed out

    def draw_53_bits(self, n: int) -> npt.NDArray[np.int64]:
        """The next n numbers as integers from 0 to 2**53 - 1: u times 2**53.

        A call of numpy's costs as much as a thousand numbers, so small vocabularies draw some steps ahead.
        """
        if n > len(self._ahead):
            missing = max(n - len(self._ahead), _LEAST_DRAWN)
            draws = self._generator.integers(0, 2**64 - 1, missing, dtype=np.uint64, endpoint=True)
            draws &= _LOW_53_BITS
            fresh = draws.view(np.int64)
            if n == missing and not len(self._ahead):
                return fresh
            self._ahead = np.concatenate((self._ahead, fresh))
        drawn, self._ahead = self._ahead[:n], self._ahead[n:]
        return drawn

    def random(self, n: int) -> npt.NDArray[np.float64]:
        """[n] numbers from 0 up to, not including, 1: `torch.empty(n, dtype=torch.float64).uniform_()`."""
        uniforms: npt.NDArray[np.float64] = np.multiply(self.draw_53_bits(n), 2.0**-53)
        return uniforms

    def standard_exponential(self, size: int | tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Exponential numbers of this shape, float32: `torch.empty(size).exponential_()`.

        One in 2**53 is 0.
        """
        draws = self.draw_53_bits(int(np.prod(size)))
        return exponential_from_bits(draws).reshape(size)


def exponential_from_bits(draws: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """`-log(1 - u)`, computed in float64 and rounded to float32, for u = `draws` / 2**53."""
    noise: npt.NDArray[np.float32] = (-np.log1p(draws * -(2.0**-53))).astype(np.float32)
    return noise
