"""Text to token ids and back, from a checkpoint's `tokenizer.json`."""

from mini_vllm.tokenizer.tokenizer import Tokenizer, TokenStream

__all__ = ["TokenStream", "Tokenizer"]
