"""Numbers in fewer bits: weights, activations, the KV cache. numpy alone: torch has its place in `gpu/`."""
