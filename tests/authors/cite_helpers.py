"""A small repository that cites a small tree, both written here, for planting faults.

`@` stands for vllm and `%` for csrc, so that these files themselves cite nothing.
"""

from __future__ import annotations

from pathlib import Path

from course.cite.check import check
from course.cite.index import Index, Names, Tree, cited, tree_names, write_index
from course.cite.names import check_names
from course.cite.text import SITE, Found, find_all

REQUEST = '''\
"""A request."""

LIMIT = 3


class Request:
    kind: str = "a"

    def __init__(self, tokens):
        self.tokens = tokens
        self.done = False

    @property
    def num_tokens(self):
        # Counted each time.
        return len(self.tokens)

    @property
    def last(self):
        return self.tokens[-1]

    def grow(self, token):
        if self.done:
            return

        self.tokens.append(token)
        self.tokens = self.tokens[-LIMIT:]
'''
# Two lines more above the class, and another `grow`.
REQUEST_NEXT = REQUEST.replace("LIMIT = 3\n", "LIMIT = 3\nMORE = 4\nMOST = 5\n").replace(
    "        if self.done:\n            return\n", "        token = int(token)\n"
)
KERNEL = """\
#include <cuda.h>
#define DIVIDE(a, b) \\
  (((a) + (b)-1) / (b))

namespace v {
// paged_kernel(x) { is only spoken of here
template <typename T>
__global__ void __launch_bounds__(128) paged_kernel(
    T* out) {
  if (out) { out[0] = 0; }
}

struct Params {
  int size() const { return 1; }
};
}  // namespace v
"""
FILES = {
    "@/_version.py": "__version__ = version = '1.0.0+cpu'\n",
    "@/envs.py": 'variables = {"@_CACHE_SIZE": 1, "@_LOG_LEVEL": 2}\n'.replace("@", "VLLM"),
    "@/sampling_params.py": "class SamplingParams:\n    top_k: int = 0\n",
    "@/config/cache.py": "class CacheConfig:\n    block_size: int = 16\n",
    "@/engine/arg_utils.py": 'class EngineArgs:\n    seed: int = 0\n\nFLAGS = ["--block-size"]\n',
    "@/entrypoints/llm.py": "class LLM:\n    def __init__(self, model, **kwargs):\n        pass\n",
    "@/v1/request.py": REQUEST,
    "@/v1/core/queue.py": "class Queue:\n    pass\n",
    "%/attention/kernel.cu": KERNEL,
}


def real(text: str) -> str:
    """What the placeholders of this file stand for."""
    return text.replace("@_", "VLLM_").replace("@", "vllm").replace("%/", "csrc/")


def grow_tree(root: Path, request: str = REQUEST, release: str = "1.0.0") -> Tree:
    for name, text in FILES.items():
        file = root / real(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "vllm/_version.py").write_text(f"__version__ = version = '{release}'\n")
    (root / "vllm/v1/request.py").write_text(request)
    return Tree(root)


class Small:
    """A repository with one page, the tree that it cites, and the index of it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.root.mkdir()
        self.tree = grow_tree(folder / "tree")
        self.index_file = folder / "citations.tsv"

    def page(self, text: str, name: str = "page.md") -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(real(text))

    def cite(self, place: str, name: str = "page.md") -> None:
        """One citation, linked as it should be."""
        path, lines = place.split(" ")[0].split(":")
        anchor = "-".join(f"L{n}" for n in lines.split("-"))
        label = place.split(" ")[-1] if " " in place else path.rsplit("/", 1)[-1]
        self.page(f'See [`{label}`](SITE/blob/v1.0.0/{path}#{anchor} "{place}").\n', name)
        file = self.root / name
        file.write_text(file.read_text().replace("SITE", SITE))

    def found(self) -> Found:
        return find_all(self.root, "1.0.0")

    @property
    def index(self) -> Index:
        write_index(self.tree, "1.0.0", cited(self.found()), self.index_file)
        return Index(self.index_file)

    def problems(self) -> list[str]:
        """What is wrong by the tree; the index made of it knows less, but finds the same places."""
        found = self.found()
        by_index, by_tree = (check(found, s, self.root) for s in (self.index, self.tree))
        places = [[(p.path, p.line) for p in problems] for problems in (by_index, by_tree)]
        assert places[0] == places[1], "the index and the tree it was made from disagree"
        return [*map(str, found.problems), *map(str, by_tree)]

    def names(self) -> list[str]:
        return [str(p) for p in check_names(self.index.names, self.root)]

    def text(self, name: str = "page.md") -> str:
        return (self.root / name).read_text().replace("vllm/", "@/")

    def index_text(self) -> str:
        return self.index_file.read_text() if self.index else ""

    def tree_names(self) -> Names:
        return tree_names(self.tree)
