"""Lab 07-07: the file's name, the nearest key, the default, and what a tile size costs."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
A100 = "NVIDIA A100-SXM4-80GB"

ANSWERS: dict[str, tuple[list[int], str]] = {
    "E and N, two GPUs": ([8, 7168], "what of an expert lies on each GPU?"),
    "E and N, two GPUs, expert parallel": ([4, 14336], "which experts lie on a GPU, and are they whole?"),
    "key for 12 and for 8192 tokens": (
        [8, 32],
        "which keys are nearest by difference? 8 and 16 are equally near to 12: which comes first?",
    ),
    "rows computed for one token": (
        [32, 128], "to how many experts does the token go, and how many rows has a block?",
    ),
    "times the weights are asked for": (
        [128, 16], "how many rows does each expert get, and how many blocks do they fill?",
    ),
    "tokens per expert": (
        [256, 128], "each token goes to two experts. Which of the two numbers does vLLM know of?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", ANSWERS)
def test_the_predictions_hold(lab: ModuleType, question: str) -> None:
    """The six predicted pairs of numbers are right."""
    said = lab.predictions()
    assert sorted(said) == sorted(ANSWERS), f"answer {sorted(ANSWERS)}; yours: {sorted(said)}"
    want, hint = ANSWERS[question]
    wrong = wrong_in(said[question], want)
    assert not wrong, f"{question}: {wrong}. Ask yourself: {hint}"


# ---- the file ------------------------------------------------------------------------------------


def test_tensor_parallel_cuts_each_expert(lab: ModuleType) -> None:
    """Each GPU has a slice of every expert, and data parallel GPUs share them too."""
    for tp, dp, want in ((1, 1, 14336), (2, 1, 7168), (8, 1, 1792), (2, 2, 3584), (1, 4, 3584)):
        got = lab.local_shape(lab.MIXTRAL, lab.Ranks(tp, dp))
        assert tuple(got) == (8, want), f"tp {tp}, dp {dp}: E and N are {(8, want)}, not {got}"


def test_expert_parallel_cuts_none(lab: ModuleType) -> None:
    """Each GPU has whole experts; what is left over goes to the first ranks."""
    for tp, dp, want in (
        (1, 1, [8]), (2, 1, [4, 4]), (2, 2, [2] * 4), (3, 1, [3, 3, 2]), (5, 1, [2, 2, 2, 1, 1]),
    ):  # fmt: skip
        ranks = lab.Ranks(tp, dp, expert_parallel=True)
        got = [tuple(lab.local_shape(lab.MIXTRAL, ranks, rank)) for rank in range(tp * dp)]
        assert got == [(e, 14336) for e in want], (
            f"tp {tp}, dp {dp}, expert parallel: the GPUs hold {want} whole experts; yours: {got}"
        )


def test_every_shipped_name(lab: ModuleType) -> None:
    """The name of each file that vLLM ships follows from its parts."""
    for file in support.files.recorded().values():
        e, n, device, dtype, shape = file.parts
        got = lab.file_name(e, n, device, dtype, shape)
        assert got == file.name, f"E {e}, N {n}, {device}, {dtype}, {shape}: {file.name}, not {got}"


def test_names_of_devices_and_blocks(lab: ModuleType) -> None:
    """File names handle spaces, the H200 family, and parts that are left out."""
    for device, want in (
        (A100, "NVIDIA_A100-SXM4-80GB"), ("NVIDIA H100 80GB HBM3", "NVIDIA_H100_80GB_HBM3"),
        ("NVIDIA H200 NVL", "NVIDIA_H200"), ("NVIDIA GH200 480GB", "NVIDIA_GH200_480GB"),
    ):  # fmt: skip
        got = lab.file_name(8, 7168, device)
        assert got == f"E=8,N=7168,device_name={want}.json", f"{device!r}: {want}, yours: {got}"
    for shape, want in (
        ([128, 128], ",block_shape=[128,128]"),
        ([0, 128], ""),
        ([], ""),
        (None, ""),
    ):
        got = lab.file_name(8, 7168, "L4", "fp8_w8a8", shape)
        full = f"E=8,N=7168,device_name=L4,dtype=fp8_w8a8{want}.json"
        assert got == full, f"block shape {shape}: {full}, not {got}"


def test_a_file_is_read(lab: ModuleType, tmp_path: Path) -> None:
    """A file is read with whole numbers as keys, in its order, without triton_version; no file gives None."""
    folder = support.put(tmp_path, "a.json", support.tuned((16, 32), (1, 16)))
    got = lab.read_configs("a.json", [folder])
    want = {
        16: {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64},
        1: {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64},
    }
    assert got == want, f"keys 16 and 1, as whole numbers: {got}"
    assert list(got) == [16, 1], f"in the order of the file, 16 and then 1: {list(got)}"
    for name, folders in (("b.json", [folder]), ("a.json", [])):
        got = lab.read_configs(name, folders)
        assert got is None, f"no folder has {name}: None, not {got!r}"


def test_your_folder_hides_the_shipped_file(lab: ModuleType, tmp_path: Path) -> None:
    """Files of the same name are not merged: only the first folder's file is used."""
    mine = support.put(tmp_path / "mine", "a.json", support.tuned((1, 16), (32, 16)))
    theirs = support.put(tmp_path / "theirs", "a.json", support.tuned((1, 64), (4096, 128)))
    got = lab.read_configs("a.json", [mine, theirs])
    assert list(got or ()) == [1, 32], f"keys 1 and 32 of the first folder, not {got}"
    assert got[1]["BLOCK_SIZE_M"] == 16, f"16 of the first folder, not {got[1]}"
    got = lab.read_configs("a.json", [tmp_path / "nowhere", theirs])
    assert list(got or ()) == [1, 4096], f"the first folder that has the file: {got}"


def test_the_nearest_key(lab: ModuleType) -> None:
    """The nearest key, larger or smaller, has the least difference; of equals, the file's first."""
    configs = {key: {"BLOCK_SIZE_M": key} for key in (1, 2, 4, 8, 16, 32)}
    for tokens, want in ((1, 1), (5, 4), (7, 8), (12, 8), (13, 16), (24, 16), (33, 32), (8192, 32)):
        got = lab.nearest_config(configs, tokens)["BLOCK_SIZE_M"]
        assert got == want, f"{tokens} tokens, keys 1 to 32: key {want}, not {got}"
    [file] = [
        one for one in support.files.recorded().values() if one.name.startswith("E=16,N=3200,")
    ]
    configs = {key: {"BLOCK_SIZE_M": key} for key in file.block_m}
    for tokens, want in ((1, 256), (1152, 1024), (640, 768), (3200, 3328), (10_000, 4096)):
        got = lab.nearest_config(configs, tokens)["BLOCK_SIZE_M"]
        order = ", ".join(map(str, configs))
        assert got == want, f"{tokens} tokens, keys in the order {order}: key {want}, not {got}"


# ---- without a file ------------------------------------------------------------------------------


def test_the_default_by_tokens(lab: ModuleType) -> None:
    """The default is right at both ends of every range of tokens in its table."""
    for tokens, (m, n, k, warps, stages) in support.LADDER.items():
        got = lab.default_config(tokens, 10_000)
        want = dict(zip(support.KEYS, (m, n, k, 1, 1, warps, stages), strict=True))
        wrong = sorted(key for key in want | got if got.get(key) != want.get(key))
        assert not wrong, f"{tokens} tokens: {wrong[0]} is wrong; yours: {got}"
        got = lab.default_config(tokens, 10_000, "fp8_w8a8")["BLOCK_SIZE_K"]
        assert got == 128, f"{tokens} tokens in FP8: BLOCK_SIZE_K is 128, not {got}"
        got = lab.default_config(tokens, 10_000, "float32")["BLOCK_SIZE_K"]
        assert got == k, f"{tokens} tokens in float32: BLOCK_SIZE_K is {k}, not {got}"


def test_when_blocks_are_grouped(lab: ModuleType) -> None:
    """Blocks are grouped from 129 whole tokens per expert of this GPU on."""
    for tokens, e, want in (
        (1031, 8, 1), (1032, 8, 16), (128, 1, 1), (129, 1, 16), (515, 4, 1), (516, 4, 16),
    ):  # fmt: skip
        got = lab.default_config(tokens, e)["GROUP_SIZE_M"]
        assert got == want, f"{tokens} tokens, {e} experts: GROUP_SIZE_M is {want}, not {got}"


# ---- a step --------------------------------------------------------------------------------------


def test_which_is_chosen(lab: ModuleType, tmp_path: Path) -> None:
    """Ilse's server with a file uses the file, and her server without one uses the default."""
    name = "E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB.json"
    folder = support.put(tmp_path, name, support.tuned((1, 48), (64, 80), (4096, 112)))
    for tokens, want in ((1, 48), (100, 80), (8192, 112)):
        got = lab.choose(tokens, 8, 7168, A100, folders=[folder])
        assert got["BLOCK_SIZE_M"] == want, f"{tokens} tokens, from the file: {want}, not {got}"
        got = lab.choose(tokens, 4, 14336, A100, folders=[folder])
        assert got == lab.default_config(tokens, 4), (
            f"{tokens} tokens, no file: the default, not {got}"
        )
        got = lab.choose(tokens, 8, 7168, A100, "fp8_w8a8", folders=[folder])
        assert got == lab.default_config(tokens, 8, "fp8_w8a8"), f"no file for FP8: not {got}"
        got = lab.choose(tokens, 8, 7168, A100, "fp8_w8a8", [128, 64], [folder])
        want_blocks = lab.blockwise_config(tokens, [128, 64])
        assert got == want_blocks, (
            f"no file for FP8 in blocks of 128 by 64: {want_blocks}, not {got}"
        )


def test_a_file_for_blocks(lab: ModuleType, tmp_path: Path) -> None:
    """A file made for one block shape is found for that shape only."""
    name = "E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB,dtype=fp8_w8a8,block_shape=[128,128].json"
    folder = support.put(tmp_path, name, support.tuned((1, 48)))
    got = lab.choose(5, 8, 7168, A100, "fp8_w8a8", [128, 128], [folder])
    assert got["BLOCK_SIZE_M"] == 48, f"the file for blocks of 128 by 128 says 48: {got}"
    got = lab.choose(5, 8, 7168, A100, "fp8_w8a8", None, [folder])
    assert got == lab.default_config(5, 8, "fp8_w8a8"), f"without blocks it is another file: {got}"


def test_invariant_reads_no_file(lab: ModuleType, tmp_path: Path) -> None:
    """In batch-invariant mode every step has the same tile size, whatever a file says."""
    name = "E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB.json"
    folder = support.put(tmp_path, name, support.tuned((1, 48)))
    for tokens in (1, 8192):
        got = lab.choose(tokens, 8, 7168, A100, folders=[folder], invariant=True)
        assert got == lab.INVARIANT, f"batch invariant, {tokens} tokens: {lab.INVARIANT}, not {got}"


def test_a_file_of_small_keys(lab: ModuleType, tmp_path: Path) -> None:
    """A file of small keys is a trap: tuned for decode, it serves prefill, where none would be better."""
    name = "E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB.json"
    folder = support.put(tmp_path, name, support.tuned((1, 16), (8, 16), (32, 16)))
    blocks = [
        lab.choose(8192, 8, 7168, A100, folders=folders)["BLOCK_SIZE_M"]
        for folders in ([folder], [])
    ]
    assert blocks == [16, 128], (
        f"BLOCK_SIZE_M of 8,192 tokens, file and no file: 16 and 128, not {blocks}"
    )
    asked = [lab.blocks_per_expert(8192, lab.MIXTRAL, block) for block in blocks]
    assert asked == [128, 16], f"each expert's 2,048 rows fill 128 and 16 blocks, not {asked}"


# ---- what a tile size costs ----------------------------------------------------------------------


def test_blocks_per_expert(lab: ModuleType) -> None:
    """An expert's rows are rounded up first, and its blocks after that."""
    many = lab.Experts(128, 768, 8)
    for tokens, experts, block, want in (
        (1, lab.MIXTRAL, 16, 1), (1, lab.MIXTRAL, 1, 1), (64, lab.MIXTRAL, 16, 1), (65, lab.MIXTRAL, 16, 2),
        (256, lab.MIXTRAL, 64, 1), (257, lab.MIXTRAL, 64, 2), (1, many, 64, 1), (8192, many, 32, 16),
        (8192, many, 128, 4),
    ):  # fmt: skip
        got = lab.blocks_per_expert(tokens, experts, block)
        assert got == want, (
            f"{tokens} tokens, {experts.top_k} of {experts.count} experts, blocks of {block}: {want} per "
            f"expert, not {got}"
        )


def test_rows_computed(lab: ModuleType) -> None:
    """The rows computed are those of whole blocks, for the experts in use only."""
    many = lab.Experts(128, 768, 8)
    for tokens, experts, block, want in (
        (1, lab.MIXTRAL, 16, 32), (1, lab.MIXTRAL, 64, 128), (3, lab.MIXTRAL, 16, 96),
        (4, lab.MIXTRAL, 16, 128), (64, lab.MIXTRAL, 16, 128), (64, lab.MIXTRAL, 64, 512),
        (1, many, 16, 128), (512, many, 64, 8192), (8192, lab.MIXTRAL, 128, 16384),
    ):  # fmt: skip
        got = lab.rows_computed(tokens, experts, block)
        assert got == want, (
            f"{tokens} tokens, {experts.top_k} of {experts.count} experts, blocks of {block}: {want} rows, "
            f"not {got}"
        )
