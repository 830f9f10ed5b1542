"""Write the two lists of texts that phase 06 quantises the tiny Llama with and measures it on.

    python -m scripts.tiny_llama.quantization_texts

`calibration.json` holds documents of the training split, for GPTQ, AWQ and SmoothQuant to look at.
`held_out.json` holds documents that were never trained on, by turns one of the split "documents" and
one of the split "openings", so that any even beginning of the list has as many of both. A document is
in one split only (`split_of`), so no text stands in both files.

The seeds are none of those that training and its evaluation used (0, 1 and 2). Standard library only,
and the same files every time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from scripts.tiny_llama.corpus import Corpus, Document, split_of

FOLDER = Path(__file__).parents[2] / "mini_vllm" / "compress" / "texts"
CALIBRATION_SEED, HELD_OUT_SEED = 3, 4
CALIBRATION_DOCUMENTS = 128
HELD_OUT_DOCUMENTS = 96


def as_text(document: Document) -> str:
    """The document as one writes it for the tokenizer, which puts `<bos>` before it.

    It stands for the same ids as `train.encode` gives: `<eos>` after prose and after each answer.
    """
    parts = []
    for role, text in document:
        parts.append(f"<|{role}|>{text}" if role else text)
        if role in ("", "assistant"):
            parts.append("<eos>")
    return "".join(parts)


def documents_of(split: str, seed: int) -> Iterator[str]:
    """Texts of the documents of one split, without end, each once."""
    seen: set[str] = set()
    for document in Corpus(seed).documents():
        text = as_text(document)
        if split_of(document) == split and text not in seen:
            seen.add(text)
            yield text


def make_texts() -> dict[str, list[str]]:
    """Both lists by file name."""
    calibration = documents_of("train", CALIBRATION_SEED)
    held_out = [documents_of(split, HELD_OUT_SEED) for split in ("documents", "openings")]
    return {
        "calibration.json": [next(calibration) for _ in range(CALIBRATION_DOCUMENTS)],
        "held_out.json": [next(held_out[i % 2]) for i in range(HELD_OUT_DOCUMENTS)],
    }


def main() -> None:
    """Write both files."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, texts in make_texts().items():
        lines = json.dumps(texts, indent=1, ensure_ascii=False)
        (FOLDER / name).write_text(lines + "\n", encoding="utf-8")
        print(f"{FOLDER / name}: {len(texts)} documents, {sum(map(len, texts)):,} characters")


if __name__ == "__main__":
    main()
