"""A step on the device: the batch as arrays, the model, the sampler; memory. Mirrors `vllm/v1/worker/`."""
