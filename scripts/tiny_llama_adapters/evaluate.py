"""Complete prompts greedily with each adapter merged into the base; print, and count what is in its style.

    python -m scripts.tiny_llama_adapters.evaluate > scripts/tiny_llama_adapters/completions.txt

The prompts are `prompts.txt`, `prompts_fresh.txt` and `prompts_unseen.txt` of `scripts/tiny_llama`; the
training text of the base, and so of the adapters, has no line of the last two. Runs on `mini_vllm`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from mini_vllm import LLM, SamplingParams
from scripts.tiny_llama_adapters.merge import ADAPTERS, BASE, write_merged
from scripts.tiny_llama_adapters.styles import SHIPPED, STYLES

LISTS = ("prompts.txt", "prompts_fresh.txt", "prompts_unseen.txt")


def prompts_of(name: str) -> list[str]:
    """The lines of a list of `scripts/tiny_llama`."""
    path = Path(__file__).parents[1] / "tiny_llama" / name
    return path.read_text(encoding="utf-8").splitlines()


def complete(folder: Path, prompts: list[str]) -> list[tuple[str, bool]]:
    """Each prompt's greedy completion, and whether it ended with EOS."""
    sampling = SamplingParams(temperature=0, max_tokens=300)
    outputs = LLM(folder, max_model_len=512).generate(prompts, sampling)
    return [(o.outputs[0].text, o.outputs[0].finish_reason == "stop") for o in outputs]


def main() -> None:
    """Print every completion and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--adapters", type=Path, default=ADAPTERS)
    parser.add_argument("--styles", nargs="+", default=list(SHIPPED))
    args = parser.parse_args()
    lists = {name: prompts_of(name) for name in LISTS}
    prompts = [line for lines in lists.values() for line in lines]
    said = {"base": complete(BASE, prompts)}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.styles:
            whole = write_merged(args.adapters / name, Path(folder) / name)
            said[name] = complete(whole, prompts)
    start = 0
    for name, lines in lists.items():
        print(f"== {name}")
        for i, line in enumerate(lines, start):
            print(line)
            for who, texts in said.items():
                text, ended = texts[i]
                follows = who in STYLES and STYLES[who].follows(text)
                mark = "" if who == "base" else "in style" if follows else "NOT"
                print(f"    {who:9} {'eos' if ended else 'CUT'} {mark:8} |{text}")
        for who in args.styles:
            here = said[who][start : start + len(lines)]
            good = sum(STYLES[who].follows(text) for text, _ in here)
            ended_here = sum(ended for _, ended in here)
            print(f"{who}: {len(here)} prompts, {good} in style, {ended_here} end with EOS")
        start += len(lines)


if __name__ == "__main__":
    main()
