"""Cards and links by name: what data sheets say of them.

`hardware.json` has the figures with their sources, and three models' settings, so that a run needs no
checkpoint. A figure of your own goes into a link's name: `nvlink,latency_us=2,gb_s=400`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mini_vllm.config.model import LlamaConfig
from mini_vllm.utils.untrusted import shorten_repr

HARDWARE_FILE = Path(__file__).parent / "hardware.json"


@dataclass(frozen=True)
class Card:
    """A card.

    Attributes:
        name, title: as flags have it, and as people say it.
        memory_bytes: all of its memory.
        flops, bandwidth: dense operations in 16 bits, and bytes of memory, a second.
        capability: CUDA's compute capability; vLLM's limits for sums go by it.
        nvlink, pcie: its links' names; `nvlink` is None where it has none.
    """

    name: str
    title: str
    memory_bytes: int
    flops: float
    bandwidth: float
    capability: str
    nvlink: str | None
    pcie: str


@dataclass(frozen=True)
class Link:
    """What joins cards to each other, as seen from one of them.

    Attributes:
        latency_s: seconds until a message's first byte is there: the alpha of alpha-beta.
        bandwidth: bytes a second that a card sends, while it receives as many: 1 / beta.
        same_node: whether the cards are in one server.
        fully_connected: whether NVLink joins each card to each other.
    """

    name: str
    latency_s: float
    bandwidth: float
    same_node: bool
    fully_connected: bool

    def send_s(self, nbytes: float) -> float:
        """Seconds of one message."""
        return self.latency_s + nbytes / self.bandwidth


@cache
def _read() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(HARDWARE_FILE.read_text(encoding="utf-8"))
    return data


@cache
def cards() -> Mapping[str, Card]:
    """Every card, by name."""
    return {
        raw["name"]: Card(
            raw["name"], raw["title"], raw["memory_bytes"], raw["tflops"] * 1e12,
            raw["bandwidth_gb_s"] * 1e9, raw["capability"], raw["nvlink"], raw["pcie"],
        )
        for raw in _read()["cards"]
    }  # fmt: skip


@cache
def links() -> Mapping[str, Link]:
    """Every link, by name."""
    return {
        raw["name"]: Link(
            raw["name"], raw["latency_us"] / 1e6, raw["gb_s"] * 1e9, raw["same_node"],
            raw["fully_connected"],
        )
        for raw in _read()["links"]
    }  # fmt: skip


@cache
def models() -> Mapping[str, LlamaConfig]:
    """The settings of the models that have a name here."""
    found = _read()["models"]
    return {name: LlamaConfig.from_dict(raw["config"]) for name, raw in found.items()}


def model_title(name: str) -> str:
    title: str = _read()["models"][name]["title"]
    return title


def get_card(name: str | Card) -> Card:
    """Raises ValueError for a name that is not in the table."""
    if isinstance(name, Card):
        return name
    if name not in cards():
        raise ValueError(f"unknown card {shorten_repr(name)}: one of {', '.join(cards())}")
    return cards()[name]


def get_link(name: str | Link | None, card: Card) -> Link:
    """A link by name, `nvlink` and `pcie` being the card's own; None: NVLink if the card has it, else PCIe.

    Behind the name, `latency_us=X` and `gb_s=X` take the place of its figures.
    Raises ValueError for a name or a figure that means nothing, and for NVLink on a card without.
    """
    if isinstance(name, Link):
        return name
    if name is None:
        name = card.nvlink or card.pcie
    first, *figures = name.split(",")
    if first == "nvlink" and card.nvlink is None:
        raise ValueError(f"link 'nvlink': the card {card.name!r} has none, only 'pcie'")
    known = {"nvlink": card.nvlink, "pcie": card.pcie}.get(first, first)
    if known is None or known not in links():
        raise ValueError(
            f"unknown link {shorten_repr(first)}: nvlink, pcie, or one of {', '.join(links())}"
        )
    link = links()[known]
    for figure in figures:
        key, _, text = figure.partition("=")
        value = _read_figure(name, key, text)
        if key == "latency_us":
            link = replace(link, name=name, latency_s=value / 1e6)
        else:
            link = replace(link, name=name, bandwidth=value * 1e9)
    return link


def _read_figure(name: str, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    least = 0.0 if key == "latency_us" else 1e-3
    if key not in ("latency_us", "gb_s") or not least <= value <= 1e6:
        raise ValueError(
            f"link {shorten_repr(name)}: behind the name come latency_us=X and gb_s=X, numbers up to 1e6, "
            f"got {shorten_repr(key + '=' + text)}"
        )
    return value
