"""Given: what real vLLM's workers keep of a checkpoint. Needs vLLM 0.22.1; `course grade` does not.

    python record.py            print it, as one line of JSON
    python record.py --record   write recorded.json, which the tests read

The checkpoint has the tiny Llama's shapes, with biases and a head of its own, and every number in it is its
own number: 1 for the first of the first tensor, and so on. So what a worker has loaded says where it is from.
It is read before vLLM's CPU build repacks the weights of linear layers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

support = load_module(Path(__file__).resolve().parent / "support.py", "lab_10_05_support")


@dataclass(frozen=True)
class Server:
    """How a model is served: its sizes, `VLLM_PP_LAYER_PARTITION`, and whether the head is the embedding."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    partition: str | None = None
    tied: bool = False


SERVERS = (
    Server(2, 1),
    Server(4, 1),
    Server(1, 2),
    Server(2, 2),
    Server(1, 3),
    Server(1, 2, "1,3"),
    Server(1, 2, tied=True),
)


def make_checkpoint(folder: Path, tied: bool) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Write it. Of each tensor its first number, and its shape."""
    import numpy as np
    from safetensors.numpy import save_file

    config = json.loads((support.TINY / "config.json").read_text("utf-8"))
    config |= {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": tied}
    first, tensors, places = 1, {}, {}
    for name, shape in support.shapes(tied).items():
        size = int(np.prod(shape))
        tensors[name] = np.arange(first, first + size, dtype=np.float32).reshape(shape)
        places[name] = (first, shape)
        first += size
    assert first < 2**24, "float32 has every number up to this"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tensors, folder / "model.safetensors")
    return places


def note_what_is_loaded() -> None:
    """In each rank's process: write the parameters down as they are when they are loaded."""
    import torch
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader import base_loader

    done = base_loader.process_weights_after_loading

    def noted(model: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        rank = parallel_state.get_world_group().rank
        torch.save(tensors, Path(os.environ["NOTED"]) / f"{rank}.pt")
        return done(model, *args, **kwargs)

    base_loader.process_weights_after_loading = noted


def find(
    tensors: dict[str, Any], places: dict[str, tuple[int, tuple[int, ...]]]
) -> dict[str, list[int]]:
    """Of each of the checkpoint's tensors that a rank has some of: first row and the one behind the last,
    and likewise for columns. Rows of padding are left out."""
    found = {}
    for tensor in tensors.values():
        numbers = tensor.reshape(len(tensor), -1).long().numpy()
        for name, (first, shape) in places.items():
            columns = shape[1] if len(shape) > 1 else 1
            here = (numbers >= first) & (numbers < first + shape[0] * columns)
            if not here.any():
                continue
            rows, across = divmod(numbers[here] - first, columns)
            box = [int(rows.min()), int(rows.max()) + 1, int(across.min()), int(across.max()) + 1]
            assert (box[1] - box[0]) * (box[3] - box[2]) == here.sum(), (name, box)
            found[name] = box if len(shape) > 1 else box[:2]
    return found


def fold_layers(found: dict[str, list[int]]) -> dict[str, Any]:
    """The same, with what is alike in all of a rank's layers said once."""
    layers: dict[int, dict[str, list[int]]] = {}
    outside = {}
    for name, box in found.items():
        words = name.split(".", 3)
        if words[1] == "layers":
            layers.setdefault(int(words[2]), {})[words[3]] = box
        else:
            outside[name] = box
    first = next(iter(layers.values()))
    assert all(layer == first for layer in layers.values())
    return {"layers": sorted(layers), "each": first, "outside": outside}


def serve(server: Server) -> list[dict[str, Any]]:
    """What each rank keeps, by rank; run in a process of its own."""
    import torch
    from vllm import LLM

    with tempfile.TemporaryDirectory() as place:
        places = make_checkpoint(Path(place) / "model", server.tied)
        os.environ["NOTED"] = place
        LLM(
            str(Path(place) / "model"),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            distributed_executor_backend="mp",
            tensor_parallel_size=server.tensor_parallel_size,
            pipeline_parallel_size=server.pipeline_parallel_size,
            max_model_len=64,
            max_num_batched_tokens=64,
            max_num_seqs=4,
            num_gpu_blocks_override=16,
        )
        size = server.tensor_parallel_size * server.pipeline_parallel_size
        ranks = [torch.load(Path(place) / f"{rank}.pt") for rank in range(size)]
        return [fold_layers(find(tensors, places)) for tensors in ranks]


def record_all(servers: Sequence[Server] = SERVERS) -> list[dict[str, Any]]:
    """What each of them keeps, each in a process of its own."""
    found = []
    for server in servers:
        size = server.tensor_parallel_size * server.pipeline_parallel_size
        environment = os.environ | {
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(
                str(rank % (os.cpu_count() or 1)) for rank in range(size)
            ),
            "TORCH_COMPILE_DISABLE": "1",
        }
        if server.partition:
            environment["VLLM_PP_LAYER_PARTITION"] = server.partition
        command = [sys.executable, __file__, "--serve", str(SERVERS.index(server))]
        run = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        ranks = json.loads(next(x for x in run.stdout.splitlines() if x.startswith('[{"layers"')))
        found.append({"server": asdict(server), "ranks": ranks})
    return found


if __name__ == "__mp_main__":  # a rank's process
    note_what_is_loaded()
if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        print(json.dumps(serve(SERVERS[int(sys.argv[2])])), flush=True)
    elif sys.argv[1:2] == ["--record"]:
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in record_all())
        support.RECORDED.write_text(f'{{"vllm":"0.22.1","servers":[\n{lines}\n]}}\n', "utf-8")
    else:
        print(json.dumps(record_all()))
