"""Lab 05-06: a small model, requests, steps; and a runner held against the model without graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np

from mini_vllm.attention import AttentionMetadata as HostMetadata

BLOCK_SIZE = 4
MAX_NUM_SEQS = 8
MAX_MODEL_LEN = 64
SIZES = (1, 2, 4, 8, 16)
NUM_BLOCKS = 1 + MAX_NUM_SEQS * MAX_MODEL_LEN // BLOCK_SIZE


class Refused(AssertionError):
    """A runner raised. Says what, and whose rule it was."""


@contextmanager
def guarded(doing: str, reads: bool = True, why: str = "") -> Iterator[None]:
    """Turn what the stand-in, or the runner itself, raises into a failed test with a sentence.

    `reads`: also refuse a read of numbers that no replay has written. A warm-up may read such.
    `why`: what stands behind the stand-in's words.
    """
    from mini_vllm.gpu.graph_standin import GraphError, watch

    try:
        with watch() if reads else nullcontext():
            yield
    except (AssertionError, NotImplementedError):
        raise
    except GraphError as error:
        raise Refused(
            f"{doing}, your code does what no graph can: {error}. {why}".rstrip()
        ) from error
    except Exception as error:
        raise Refused(f"{doing}, your code raised {type(error).__name__}: {error}") from error


def make_model(device: str, lazy: bool = False) -> Any:
    """A Llama of two layers with random weights. `lazy`: it makes a table when a size first comes."""
    import torch

    from mini_vllm.config.model import LlamaConfig
    from mini_vllm.gpu.backend import TorchAttention
    from mini_vllm.gpu.llama import LlamaForCausalLM
    from mini_vllm.model_loader.loader import expected_tensors

    class CheckedAttention(TorchAttention):
        """Looks at the metadata's shapes and numbers, as a kernel's launcher does."""

        def forward(
            self, query: Any, key: Any, value: Any, kv_cache: Any, md: Any, output: Any = None
        ) -> Any:
            check_metadata(len(key), md)
            return super().forward(query, key, value, kv_cache, md, output)

    class LazyLlama(LlamaForCausalLM):
        """Looks its angles up, in a table for each number of rows, made when that number first comes: so does
        a compiler with its kernels."""

        tables: dict[int, Any]

        def embed(self, input_ids: Any, positions: Any) -> Any:
            self.tables = getattr(self, "tables", {})
            if len(input_ids) not in self.tables:
                places = torch.arange(MAX_MODEL_LEN, device=self.device).float()
                angles = places[:, None, None] * self.inv_freq
                self.tables[len(input_ids)] = angles.cos(), angles.sin()
            hidden_states, _ = super().embed(input_ids, positions)
            cos, sin = self.tables[len(input_ids)]
            return hidden_states, (cos[positions], sin[positions])

    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=MAX_MODEL_LEN,
    )  # fmt: skip
    rng = np.random.default_rng(5)
    weights = {
        name: np.ones(shape, np.float32)
        if name.endswith("norm.weight")
        else rng.normal(0, 0.4, shape).astype(np.float32)
        for name, shape in expected_tensors(config).items()
    }
    made = LazyLlama if lazy else LlamaForCausalLM
    return made(config, weights, CheckedAttention(), device=device)


def check_metadata(rows: int, md: Any) -> None:
    """Raises ValueError where the metadata contradicts itself."""
    reqs = len(md.seq_lens)
    for name, found, want in (
        ("query_start_loc", [*md.query_start_loc.shape], [reqs + 1]),
        ("block_table's rows", md.block_table.shape[0], reqs),
        ("slot_mapping", [*md.slot_mapping.shape], [rows]),
    ):
        if found != want:
            raise ValueError(
                f"for {rows} rows and seq_lens of [{reqs}], {name} is {want}, got {found}"
            )
    if not 0 <= md.num_decodes <= reqs:
        raise ValueError(f"num_decodes is at most the {reqs} requests, got {md.num_decodes}")
    if reqs and (md.max_query_len == 1) != (md.num_decodes == reqs):
        raise ValueError(
            f"max_query_len is {md.max_query_len}, and {md.num_decodes} of {reqs} requests decode: with one "
            "token each they all do, and with more they do not"
        )


class Night:
    """Requests, their blocks, and the steps that they make. Every step goes through two caches: the runner's,
    and that of the model without graphs.

    Args:
        lab: the module with `CaptureRunner`.
        device: `cpu` or `cuda`.
        sizes, max_num_seqs: for the runner.
        lazy: see `make_model`.
    """

    def __init__(
        self,
        lab: ModuleType,
        device: str = "cpu",
        sizes: Sequence[int] = SIZES,
        max_num_seqs: int = MAX_NUM_SEQS,
        lazy: bool = False,
    ) -> None:
        import torch

        self.model = make_model(device, lazy)
        reference = make_model(device, lazy)
        attention = self.model.attention
        config = self.model.config
        shape = attention.get_kv_cache_shape(
            NUM_BLOCKS, BLOCK_SIZE, config.num_key_value_heads, config.head_dim
        )
        layers = range(config.num_hidden_layers)
        self.caches = [torch.zeros(shape, device=device) for _ in layers]
        self.expected_caches = [torch.zeros(shape, device=device) for _ in layers]
        self.reference = reference
        self.device = device
        self.rng = np.random.default_rng(len(sizes))
        self.free = list(range(1, NUM_BLOCKS))
        self.blocks: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}
        with torch.inference_mode(), guarded("Making the runner"):
            self.runner = lab.CaptureRunner(
                self.model, self.caches, sizes, max_num_seqs, MAX_MODEL_LEN
            )

    def capture(self) -> Night:
        """Let the runner capture."""
        import torch

        with torch.inference_mode(), guarded("In capture()", reads=False):
            self.runner.capture()
        return self

    def fill(
        self, size: int, num_reqs: int, step: tuple[np.ndarray, np.ndarray, HostMetadata]
    ) -> Any:
        """The runner's `fill`."""
        import torch

        with torch.inference_mode(), guarded("In fill()"):
            return self.runner.fill(size, num_reqs, *step)

    def leave(self, name: str) -> None:
        """The request has finished: its blocks are given to the next that asks."""
        self.free = self.blocks.pop(name) + self.free
        del self.lengths[name]

    def arrays(self, **tokens: int) -> tuple[np.ndarray, np.ndarray, HostMetadata]:
        """A step in which each request gets so many tokens, as `ModelRunner` lays it out."""
        ids, positions, slots, lens = [], [], [], []
        for name, count in tokens.items():
            blocks = self.blocks.setdefault(name, [])
            start = self.lengths.get(name, 0)
            self.lengths[name] = start + count
            while len(blocks) * BLOCK_SIZE < start + count:
                blocks.append(self.free.pop(0))
            for position in range(start, start + count):
                positions.append(position)
                slots.append(blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
            ids.append(self.rng.integers(0, 97, count))
            lens.append(start + count)
        table = np.zeros((len(tokens), max(len(self.blocks[name]) for name in tokens)), np.int32)
        for row, name in enumerate(tokens):
            table[row, : len(self.blocks[name])] = self.blocks[name]
        metadata = HostMetadata(
            query_start_loc=np.cumsum([0, *tokens.values()], dtype=np.int32),
            seq_lens=np.array(lens, np.int32),
            block_table=table,
            slot_mapping=np.array(slots, np.int64),
            block_size=BLOCK_SIZE,
        )
        return np.concatenate(ids).astype(np.int32), np.array(positions), metadata

    def expected(self, ids: np.ndarray, positions: np.ndarray, md: HostMetadata) -> Any:
        """Hidden states of the model without graphs."""
        import torch

        from mini_vllm.gpu.backend import AttentionMetadata, count_decodes

        def tensor(values: np.ndarray) -> Any:
            return torch.as_tensor(values, device=self.device)

        on_device = AttentionMetadata(
            *map(tensor, (md.query_start_loc, md.seq_lens, md.block_table, md.slot_mapping)),
            num_decodes=count_decodes(md.query_start_loc), max_query_len=md.max_query_len,
            max_seq_len=md.max_seq_len,
        )  # fmt: skip
        return self.reference.forward(
            tensor(ids), tensor(positions), self.expected_caches, on_device
        )

    def run(self, why: str, **tokens: int) -> Any:
        """One step through both; fails with `why` where they differ. Returns the runner's hidden states."""
        import torch

        ids, positions, metadata = self.arrays(**tokens)
        what = ", ".join(f"{name} {count}" for name, count in tokens.items())
        doing = f"In the step of {len(ids)} tokens ({what})"
        with torch.inference_mode():
            expected = self.expected(ids, positions, metadata)
            with guarded(doing, why=why):
                found = self.runner.run(ids, positions, metadata)
                assert isinstance(found, torch.Tensor), f"run returns a tensor, got {found!r}"
                assert found.shape == expected.shape, (
                    f"{doing}, run returned {[*found.shape]} instead of {[*expected.shape]}: a row for each "
                    "token of the step, and none of padding"
                )
                compare(doing, why, found, expected)
                for layer, (mine, theirs) in enumerate(
                    zip(self.caches, self.expected_caches, strict=True)
                ):
                    wrong = (mine[1:] != theirs[1:]) & ~(mine[1:] - theirs[1:]).abs().lt(1e-3)
                    blocks = (wrong.nonzero()[:, 0] + 1).tolist()
                    assert not blocks, (
                        f"{doing}, the K or V of layer {layer} in block {blocks[0]} is not what the model "
                        f"writes without graphs. {why}"
                    )
        return found


def compare(doing: str, why: str, found: Any, expected: Any) -> None:
    """Fail with `why` where hidden states differ; NaN has a sentence of its own."""
    rows = found.isnan().any(1).nonzero().flatten().tolist()
    assert not rows, (
        f"{doing}, row {rows[0]} of the result is NaN: it comes from memory that no replay has written. {why}"
    )
    error = (found - expected).abs().amax(1)
    row = int(error.argmax())
    assert float(error[row]) < 1e-3, (
        f"{doing}, row {row} of the result is off by {float(error[row]):.2g}. {why}"
    )


def pool_bytes(lab: ModuleType, sizes: Sequence[int], max_num_seqs: int) -> list[int]:
    """What each pool of a runner of these sizes has taken from the stand-in when all is captured."""
    from mini_vllm.gpu.graph_standin import MemPool

    before = MemPool.everywhere()
    night = Night(lab, sizes=sizes, max_num_seqs=max_num_seqs).capture()
    new = [pool.reserved_bytes() for pool in MemPool.everywhere() if pool not in before]
    del night
    return [taken for taken in new if taken]


@contextmanager
def small_segments() -> Iterator[None]:
    """Pools that grow by 512 bytes: to a model as small as this, what 2 MiB are to a large one."""
    from mini_vllm.gpu.graph_standin import MemPool

    usual = MemPool.segment_bytes
    MemPool.segment_bytes = 512
    try:
        yield
    finally:
        MemPool.segment_bytes = usual


@contextmanager
def counted_captures(device: str) -> Iterator[list[Any]]:
    """A list that gets every graph whose capture begins."""
    from mini_vllm.gpu.graph_standin import graphs_for

    graphs = graphs_for(device)
    begun: list[Any] = []
    usual = graphs.graph

    class Counted(usual):  # type: ignore[misc, valid-type]
        def __init__(self, cuda_graph: Any, *args: Any, **kwargs: Any) -> None:
            begun.append(cuda_graph)
            super().__init__(cuda_graph, *args, **kwargs)

    graphs.graph = Counted
    try:
        yield begun
    finally:
        graphs.graph = usual


@contextmanager
def counted_replays(device: str) -> Iterator[list[Any]]:
    """A list that gets every graph that is replayed."""
    from mini_vllm.gpu.graph_standin import graphs_for

    kind = graphs_for(device).CUDAGraph
    done: list[Any] = []
    usual = kind.replay

    def replay(self: Any) -> None:
        done.append(self)
        usual(self)

    kind.replay = replay
    try:
        yield done
    finally:
        kind.replay = usual
