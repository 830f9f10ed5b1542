"""A GGUF file, the format of llama.cpp, as a checkpoint folder of Hugging Face's form.

Three files say how: `config.py` the sizes, `tokenizer.py` the vocabulary, `convert.py` the tensors and the
folder. The package `gguf` (extra `gguf`) reads the file and undoes its quantisation. vLLM reads GGUF through
the same package, with the tokenizer of another folder
(`vllm/model_executor/model_loader/gguf_loader.py:38 GGUFModelLoader`), and keeps the codes in memory, for
which it has kernels on GPUs alone. Here the weights become floats once, and the folder then serves both
engines.
"""
