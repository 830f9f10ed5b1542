"""Phase 06's texts: the script makes the committed files again, and nothing held out was trained on."""

from __future__ import annotations

import json

from mini_vllm.compress.evaluate import HELD_OUT, load_documents
from scripts.tiny_llama.corpus import Corpus, split_of
from scripts.tiny_llama.folder import BOS, EOS, FIRST_BYTE, ROLES
from scripts.tiny_llama.quantization_texts import (
    CALIBRATION_SEED,
    FOLDER,
    HELD_OUT_SEED,
    as_text,
    make_texts,
)

CHECKPOINT = FOLDER.parents[1] / "checkpoints" / "tiny-llama"


def test_the_script_makes_the_committed_texts() -> None:
    """Seeds and corpus give both files, text by text."""
    for name, texts in make_texts().items():
        assert json.loads((FOLDER / name).read_text(encoding="utf-8")) == texts, name


def test_calibration_is_training_text_and_the_rest_is_not() -> None:
    """Each text is looked up in the corpus that it came from, and asked for its split."""
    for name, seed, splits in (
        ("calibration.json", CALIBRATION_SEED, {"train"}),
        ("held_out.json", HELD_OUT_SEED, {"documents", "openings"}),
    ):
        wanted = set(json.loads((FOLDER / name).read_text(encoding="utf-8")))
        found = set()
        for document in Corpus(seed).documents():
            text = as_text(document)
            if text in wanted:
                wanted.remove(text)
                found.add(split_of(document))
            if not wanted:
                break
        assert found == splits, name


def test_a_text_has_the_ids_of_the_training() -> None:
    """The tokenizer gives for a text what training gave for its document, special tokens included."""
    wanted = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    ids_of = dict(zip(wanted, load_documents(HELD_OUT, CHECKPOINT), strict=True))
    chats = 0
    for document in Corpus(HELD_OUT_SEED).documents():
        ids = ids_of.pop(as_text(document), None)
        if ids is not None:
            trained = [BOS]
            for role, text in document:
                trained += [ROLES[role]] if role else []
                trained += [FIRST_BYTE + byte for byte in text.encode()]
                trained += [EOS] if role in ("", "assistant") else []
            assert ids == trained, document
            chats += document[0][0] != ""
        if not ids_of:
            break
    assert chats >= 20
