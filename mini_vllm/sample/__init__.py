"""From logits to a token. Mirrors `vllm/v1/sample/`."""
