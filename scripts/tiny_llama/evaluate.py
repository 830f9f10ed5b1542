"""Complete unseen prompts greedily with transformers, print them and count how they end.

    python -m scripts.tiny_llama.evaluate mini_vllm/checkpoints/tiny-llama

The prompts are the first words of held-out sentences, and three lists that were typed by hand:
`prompts.txt`, which was at hand while the text was written, and `prompts_fresh.txt` and
`prompts_unseen.txt`, whose lines `corpus.py` keeps out of the training.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.tiny_llama.corpus import Corpus, opening, sentences, split_of

FOLDER = Path(__file__).parent
LISTS = ("prompts.txt", "prompts_fresh.txt", "prompts_unseen.txt")


def held_out_openings(count: int, seed: int) -> list[str]:
    """Openings of prose documents that the training never saw, each once."""
    found: dict[str, None] = {}
    for document in Corpus(seed).documents():
        if len(found) == count:
            break
        # One sentence that alone makes the document held out has a held-out opening.
        first = sentences(document)[0]
        if document[0][0] == "" and split_of((("", first),)) == "openings":
            found[opening(first)] = None
    return list(found)


def loops(text: str) -> bool:
    """Whether a run of 12 or more characters stands twice in a row, or a sentence comes twice."""
    parts = re.split(r"(?<=[.?!]) ", text)
    return len(set(parts)) < len(parts) or bool(re.search(r"(.{12,})\1", text))


def main() -> None:
    """Print every completion and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--openings", type=int, default=40, help="how many held-out openings")
    parser.add_argument("--max-new-tokens", type=int, default=300)
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
    groups = {name: (FOLDER / name).read_text(encoding="utf-8").splitlines() for name in LISTS}
    groups["held-out openings"] = held_out_openings(args.openings, args.seed)
    for name, prompts in groups.items():
        print(f"== {name}")
        ended = repeated = total = 0
        for prompt in prompts:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=args.max_new_tokens,
                do_sample=False,
            )[0, ids.shape[1] :]
            stopped = bool(output[-1] == tokenizer.eos_token_id)
            text = tokenizer.decode(output, skip_special_tokens=True)
            ended += stopped
            repeated += loops(prompt + text)
            total += len(output)
            print(f"{'eos' if stopped else 'CUT'} {len(output):3d}  {prompt}\u2502{text}")
        mean = total / max(1, len(prompts))
        print(f"{len(prompts)} prompts: {ended} end with EOS, {repeated} repeat, {mean:.0f} tokens")


if __name__ == "__main__":
    main()
