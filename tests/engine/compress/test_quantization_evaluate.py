"""Phase 06: perplexity and its kin, the texts, and what the linear layers are seen to get."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from mini_vllm.compress.calibrate import ROWS, Recorder, calibrate
from mini_vllm.compress.evaluate import (
    CALIBRATION,
    HELD_OUT,
    evaluate,
    greedy_agreement,
    kl,
    load_documents,
    logprobs,
    perplexity,
)
from tests.engine.helpers.engine.engine_helpers import random_model
from tests.engine.helpers.quantization.quantization_methods import (
    TINY,
    held_out,
    inputs,
    linears,
    model,
    weights,
)


def test_no_text_is_in_both_files() -> None:
    """What is measured on was not looked at before."""
    calibration, measured = (
        json.loads(path.read_text("utf-8")) for path in (CALIBRATION, HELD_OUT)
    )
    assert not {*calibration} & {*measured}
    assert (len({*calibration}), len({*measured})) == (128, 96)


def test_a_document_is_a_whole_text() -> None:
    """Ids begin with `<bos>` once and end with `<eos>`."""
    for ids in load_documents(HELD_OUT, TINY) + load_documents(CALIBRATION, TINY, 9):
        assert ids[0] == 1
        assert ids[-1] == 2
        assert 1 not in ids[1:]


@pytest.mark.parametrize(
    ("content", "says"),
    [("{}", "JSON list of texts"), ("[]", "at least one"), ('["a", 7]', "entry 1"), ("[", "JSON")],
)
def test_texts_that_are_none(tmp_path: Path, content: str, says: str) -> None:
    """The file and the entry are named."""
    path = tmp_path / "texts.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=says) as caught:
        load_documents(path, TINY)
    assert "texts.json" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is named, too."""
    with pytest.raises(ValueError, match="nowhere"):
        load_documents(tmp_path / "nowhere.json", TINY)


def test_perplexity_is_that_of_the_engine() -> None:
    """The engine gives the log probability of each token of a prompt; both ways to the same number."""
    from mini_vllm.entrypoints.llm import LLM
    from mini_vllm.sampling_params import SamplingParams

    documents = held_out()[:3]
    llm = LLM(str(TINY))
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in documents],
        SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0),
    )
    said = [
        row[token].logprob
        for output, ids in zip(outputs, documents, strict=True)
        for token, row in zip(ids[1:], (output.prompt_logprobs or [])[1:], strict=True)
    ]
    assert perplexity(model(), documents) == pytest.approx(math.exp(-np.mean(said)), rel=1e-5)


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents one by one, or several in a step."""
    documents = held_out()[:4]
    together = evaluate(model(), documents)
    monkeypatch.setattr("mini_vllm.compress.evaluate.BATCH_TOKENS", 1)
    alone = evaluate(model(), documents)
    assert alone.nll == pytest.approx(together.nll, rel=1e-5)
    assert alone.tokens == together.tokens == sum(len(ids) - 1 for ids in documents)


def test_measures_by_hand() -> None:
    """KL of two rows, agreement of three of four, and the model against itself."""
    a = np.log(np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]))
    b = np.log(np.array([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]))
    assert kl(a, b) == pytest.approx((0.5 * np.log(2) - 0.25 * np.log(2)) / 2)
    assert greedy_agreement(a, b) == 0.5
    same = evaluate(model(), held_out()[:2], model())
    assert same.kl == pytest.approx(0, abs=1e-6)
    assert same.greedy_agreement == 1
    rows = logprobs(model(), held_out()[0])
    assert rows.shape == (len(held_out()[0]), 264)
    assert np.exp(rows).sum(axis=-1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ([], "empty"),
        ([[1, 9], [1]], "document 1 has 1"),
        ([[1, 9], [1, 264]], "document 1 has token ids 1 to 264; the model's vocab_size is 264"),
        ([[-1, 9]], "document 0 has token ids -1 to 9"),
    ],
)
def test_documents_that_cannot_be_measured(documents: list[list[int]], says: str) -> None:
    """None at all, or one that predicts nothing; the same for calibration."""
    for measure in (perplexity, calibrate):
        with pytest.raises(ValueError, match=says):
            measure(model(), documents)
    with pytest.raises(ValueError, match="max_position_embeddings is 1024"):
        perplexity(model(), [[1] * 1025])
    with pytest.raises(ValueError, match="vocab_size of 264 and the reference one of 64"):
        evaluate(model(), [[1, 9]], random_model())


# ---- what the layers see -------------------------------------------------------------------------


def test_the_statistics_are_those_of_the_rows() -> None:
    """With so few tokens that every row is kept, H, largest and mean magnitude follow from the rows."""
    documents = held_out()[:2]
    seen = calibrate(model(), documents)
    assert len(seen) == 28
    for name in linears([1]):
        layer = seen[name]
        x = layer.rows.astype(np.float64)
        assert len(x) == layer.tokens == sum(map(len, documents))
        assert x.shape[1] == weights()[f"{name}.weight"].shape[1]
        assert np.allclose(layer.hessian, 2 / len(x) * x.T @ x)
        assert np.array_equal(layer.absmax, np.abs(layer.rows).max(axis=0))
        assert np.allclose(layer.absmean, np.abs(x).mean(axis=0))
    q, k, o = (seen[f"model.layers.1.self_attn.{p}_proj"] for p in "qko")
    assert q is k
    assert q is not o
    normed = model().layers[0].input_layernorm(weights()["model.embed_tokens.weight"][documents[0]])
    first = seen["model.layers.0.self_attn.q_proj"].rows[: len(documents[0])]
    assert np.allclose(first, normed, atol=1e-5)


def test_rows_are_spread_over_the_documents() -> None:
    """Of many tokens every stride-th row is kept, whatever the batches."""
    recorder = Recorder(lambda x: x, 3)
    for chunk in np.split(np.arange(20.0)[:, None], [4, 5, 11]):
        recorder(chunk)
    assert recorder.seen().rows.ravel().tolist() == [0, 3, 6, 9, 12, 15, 18]
    for seen in inputs().values():
        assert 0.5 * ROWS < len(seen.rows) <= ROWS


def test_the_error_is_that_of_the_outputs() -> None:
    """tr(D H Dᵀ) / 2 is the mean squared change of the outputs, summed over them."""
    seen = calibrate(model(), held_out()[:2])["model.layers.2.mlp.down_proj"]
    change = np.random.default_rng(0).normal(size=(128, 384)) * 0.01
    measured = ((seen.rows.astype(np.float64) @ change.T) ** 2).sum(axis=1).mean()
    assert seen.error(change) == pytest.approx(measured)


def test_numbers_that_leave_float32_are_told_by_layer() -> None:
    """No statistics follow from infinity, and GPTQ would only find its weights to be NaN."""
    other = random_model()
    other.layers[1].mlp.gate_up_proj.weight *= np.float32(1e30)
    with (
        np.errstate(all="ignore"),
        pytest.raises(ValueError, match=r"comes into model.layers.1.mlp.down_proj is not finite"),
    ):
        calibrate(other, [[3, 4, 5]])


def test_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a step fails in the middle."""
    before = [layer.mlp.down_proj for layer in model().layers]
    calibrate(model(), held_out()[:1])
    monkeypatch.setattr(model().layers[2].mlp, "down_proj", None)
    with pytest.raises(TypeError):
        calibrate(model(), held_out()[:1])
    monkeypatch.undo()
    assert [layer.mlp.down_proj for layer in model().layers] == before
