"""Real vLLM's reader on checkpoint folders, all in one process: `python files_vllm_child.py JOB.json`.

Each folder is read as the engine does it: its settings, the model they name, and that model's weights. Prints
one line of JSON: for each folder what was read, or the error that it was refused with.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.engine.helpers.quantization.quantized_vllm_child import inputs


def read(folder: str, with_products: bool) -> dict[str, Any]:
    """Digests of the parameters, before the engine turns them into its kernels' layout; and after that what
    each linear of the first layer makes of the same rows."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.utils import (
        initialize_model,
        process_weights_after_loading,
    )

    arguments = EngineArgs(
        folder, dtype="float32", enforce_eager=True, block_size=16, max_model_len=64
    )
    config = arguments.create_engine_config()
    torch.set_default_dtype(torch.float32)
    cpu = torch.device("cpu")
    with set_current_vllm_config(config), cpu:
        model = initialize_model(config)
        for parameter in model.parameters():
            # A tensor that no file writes is to be seen.
            parameter.data.fill_(torch.nan if parameter.is_floating_point() else 77)
        DefaultModelLoader(config.load_config).load_weights(model, config.model_config)
        digests = {
            name: hashlib.sha256(parameter.data.numpy().tobytes()).hexdigest()[:16]
            for name, parameter in model.named_parameters()
        }
        if not with_products:
            return {"digests": digests}
        process_weights_after_loading(model, config.model_config, cpu)
        layer = model.model.layers[0]
        linears = (
            layer.self_attn.qkv_proj,
            layer.self_attn.o_proj,
            layer.mlp.gate_up_proj,
            layer.mlp.down_proj,
        )
        rows = [torch.tensor(inputs(linear.input_size)) for linear in linears]
        products = [linear(x)[0].tolist() for linear, x in zip(linears, rows, strict=True)]
    return {"digests": digests, "products": products}


def main() -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with tempfile.TemporaryDirectory() as place, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{place}/store", 0, "gloo")
        initialize_model_parallel(1)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results: list[dict[str, Any] | str] = []
    for folder in job["folders"]:
        try:
            results.append(read(folder, job["products"]))
        except Exception as error:  # the others are to be read nevertheless
            results.append(f"{type(error).__name__}: {error}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
