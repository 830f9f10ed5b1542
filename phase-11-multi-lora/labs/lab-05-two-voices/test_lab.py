"""Lab 11-05: the predictions, the trace, the two mends, and what they cost."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens

support = load_support(__file__)
RECORDED = support.recorded()
Row = support.Row


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "cached": (96, "What does the key hold, and which tokens must always be computed?"),
        "sound": (0, "What did the rows of the new blocks attend over?"),
        "layers": ((3, 0), "What are a layer's K and V computed from?"),
        "salt": (
            16,
            "What is in the hash of the first block, and of the second, in either request?",
        ),
        "at once": (48, "Which request is admitted first after the reset, and with which weights?"),
        "lost": ((6, 18), "Whose keys change? Whose blocks does a reset leave?"),
    }
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- found in a trace ----------------------------------------------------------------------------


def check_audit(lab: ModuleType, rows: list[Any], expected: dict[str, Any], what: str) -> None:
    """Fails at the first request about which the audit is wrong."""
    got = lab.audit(rows, support.BLOCK_SIZE)
    for request in dict.fromkeys(row.request for row in rows):
        mine, due = got.get(request), expected.get(request)
        assert mine == due, (
            f"{what}: {request!r} " + (f"reads unsound positions, step and number {due}" if due else
            "reads nothing unsound") + (f"; you say {mine}" if mine else "; you leave it out")
        )  # fmt: skip
    assert set(got) <= {row.request for row in rows}, f"{what}: you name {sorted(got)}"


UNSOUND = {
    "reload": {"ada 2": (56, 128), "ada 3": (84, 128), "ada 4": (112, 144)},
    "fresh name": {},
    "refused": {"ada 2": (64, 128)},
    "forced": {"ada 2": (64, 144)},
    "salt": {"noor 1": (56, 16)},
    "in place": {"ada long": (64, 167), "ada 2": (76, 128)},
}


@pytest.mark.parametrize("scene", UNSOUND)
def test_the_audit_finds_it_in_vllms_traces(lab: ModuleType, scene: str) -> None:
    """`audit` names the requests of real vLLM that read another adapter's K and V, and no other."""
    rows = support.rows_of(RECORDED[scene])
    check_audit(lab, rows, UNSOUND[scene], f"vLLM's run {scene!r}")


def row(step: int, request: str, weights: str, computed: int, scheduled: int, *blocks: int) -> Any:
    return Row(step, request, weights, computed, scheduled, blocks)


def test_the_audit_forgets_what_is_overwritten(lab: ModuleType) -> None:
    """Blocks that were freed are written again: then they hold the new request's."""
    rows = [
        row(0, "a", "old", 0, 40, 1, 2, 3),
        row(1, "b", "new", 0, 40, 3, 1, 4),
        row(2, "b", "new", 40, 1, 3, 1, 4),
        row(3, "c", "old", 16, 4, 2, 9),
        row(4, "d", "old", 16, 4, 3, 8),
    ]
    check_audit(lab, rows, {"d": (4, 16)}, "blocks 1 and 3 are used twice")


def test_the_audit_forgives_what_is_computed_again(lab: ModuleType) -> None:
    """After a preemption all is computed again, in other blocks: a request that read unsound now does not."""
    rows = [
        row(0, "a", "old", 0, 16, 1),
        row(1, "b", "new", 16, 4, 1, 2),
        row(2, "b", "new", 0, 21, 3, 4),
        row(3, "c", "new", 16, 4, 3, 5),
        row(3, "d", "new", 0, 16, 1),
        row(4, "d", "new", 16, 4, 1, 2),
    ]
    what = "'b' reads block 1, which is old, and then computes block 3 from its first token"
    check_audit(lab, rows, {"b": (1, 16)}, what)


def test_the_audit_looks_at_positions(lab: ModuleType) -> None:
    """A block may hold both: of a request whose weights change half-way, the first half is old."""
    rows = [
        row(0, "a", "old", 0, 10, 1),
        row(1, "b", "new", 0, 16, 2),
        row(1, "a", "new", 10, 4, 1),
        row(2, "a", "new", 14, 2, 1),
        row(3, "c", "new", 16, 1, 2, 3),
        row(3, "d", "old", 16, 1, 1, 4),
    ]
    found = {"a": (1, 10), "d": (3, 6)}
    check_audit(lab, rows, found, "the weights of 'a' change after 10 tokens")


def test_unsound_is_passed_on(lab: ModuleType) -> None:
    """What is computed over unsound positions is unsound for those with either weights, and so on."""
    rows = [
        row(0, "a", "old", 0, 16, 1),
        row(1, "b", "new", 16, 16, 1, 2),
        row(1, "c", "new", 32, 16, 1, 2, 3),
        row(2, "d", "old", 32, 1, 1, 2, 4),
        row(3, "e", "new", 0, 16, 5),
        row(3, "f", "new", 16, 1, 5, 6),
    ]
    found = {"b": (1, 16), "c": (1, 32), "d": (2, 16)}
    check_audit(lab, rows, found, "'b' computes block 2 over block 1, which is old")


# ---- the first mend ------------------------------------------------------------------------------

CONFIG = {"r": 4, "lora_alpha": 8, "use_rslora": False, "lora_dropout": 0.0}


def some_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = ("layers.0.k_proj.lora_A", "layers.0.k_proj.lora_B", "layers.0.v_proj.lora_A")
    shapes = ((4, 8), (8, 4), (4, 8))
    # A large one too, of which numpy prints only the ends.
    names, shapes = (*names, "layers.0.up_proj.lora_B"), (*shapes, (512, 4))
    return {n: rng.normal(size=s).astype(np.float32) for n, s in zip(names, shapes, strict=True)}


def test_a_version_is_the_weights(lab: ModuleType) -> None:
    """The version changes with everything that changes a product."""
    tensors = some_tensors()
    first, second, third, large = tensors
    usual = lab.version(CONFIG, tensors)
    assert isinstance(usual, bytes), f"bytes are asked for, not {usual!r}"
    assert len(usual) == 32, f"32 bytes are asked for, not {len(usual)}"
    number = tensors[second].copy()
    number[-1, -1] += 1
    little = tensors[large].copy()
    little[256, 2] = np.nextafter(little[256, 2], np.float32(9))
    swapped = {**tensors, first: tensors[third], third: tensors[first]}
    others: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]] = {
        "lora_alpha is 16, not 8": ({**CONFIG, "lora_alpha": 16}, tensors),
        "r is 16, not 4": ({**CONFIG, "r": 16}, tensors),
        "use_rslora is true": ({**CONFIG, "use_rslora": True}, tensors),
        "one number is another": (CONFIG, {**tensors, second: number}),
        "one number of 2,048 is a trifle larger": (CONFIG, {**tensors, large: little}),
        "two tensors have changed places": (CONFIG, swapped),
        "a tensor has another name": (CONFIG, {"x" if n == third else n: t for n, t in tensors.items()}),
        "a tensor is missing": (CONFIG, {n: t for n, t in tensors.items() if n != third}),
        "8 by 4 has become 4 by 8": (CONFIG, {**tensors, second: tensors[second].reshape(4, 8)}),
    }  # fmt: skip
    for what, (config, changed) in others.items():
        assert lab.version(config, changed) != usual, f"{what}, and the version is the same"


def refuse_hash(_: object) -> int:
    pytest.fail("Python's hash() gives another number in each process")


def test_a_version_is_nothing_but_the_weights(
    lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights have one version, however their files are written, and in every process."""
    monkeypatch.setattr(lab, "hash", refuse_hash, raising=False)
    tensors = some_tensors()
    usual = lab.version(CONFIG, tensors)
    assert lab.version(CONFIG, tensors) == usual, "called twice, it says two things"
    backwards = dict(reversed(list(tensors.items())))
    assert lab.version(CONFIG, backwards) == usual, "the tensors come in another order"
    plain = {"r": 4, "lora_alpha": 8}
    assert lab.version(plain, tensors) == usual, "use_rslora is not there, which means False"
    other = {**CONFIG, "lora_dropout": 0.1, "inference_mode": True}
    assert lab.version(other, tensors) == usual, "an entry for training has changed"


def test_no_two_keys_meet(lab: ModuleType) -> None:
    """Names, versions and salts made of the same few bytes: a block's hash is shared by equals alone."""
    rng = random.Random(0)
    pieces = ["a", "b", "\0", "ÿ", "\x01", "Ж"]
    versions = [bytes([byte]) * 32 for byte in (97, 98, 1, 0)]
    of_hash: dict[bytes, Any] = {}
    for _ in range(6_000):
        name = "".join(rng.choices(pieces, k=rng.randint(1, 3)))
        which = rng.choice(versions)
        key = lab.hash_key(name, which)
        assert isinstance(key, bytes), f"a key is bytes, not {type(key).__name__}"
        salts = [None, "a", name, name + which.decode(), key.decode("utf-8", "replace")]
        salts += [f"{name}\0{which.decode()}", which.decode()]
        salt = rng.choice(salts)
        lora = SimpleNamespace(hash_key=key) if rng.random() < 0.6 else None
        request: Any = SimpleNamespace(cache_salt=salt, lora_request=lora)
        block = hash_block_tokens(None, [1, 2], generate_block_hash_extra_keys(request, 0))
        asked = (salt, *((name, which) if lora else ()))
        other = of_hash.setdefault(block, asked)
        assert other == asked, (
            f"two requests share a first block: one with {told(*other)}; one with {told(*asked)}"
        )


def told(salt: str | None, name: str | None = None, version: bytes = b"") -> str:
    """A request of the test above in words."""
    adapter = (
        "no adapter" if name is None else f"the adapter {name!r}, version 32 * {version[:1]!r}"
    )
    return f"{adapter}, and {'no salt' if salt is None else f'the salt {salt!r}'}"


def text(tokens: list[int]) -> str:
    return repr(support.decode(tokens))


def truth() -> dict[str, list[int]]:
    """The answers of vLLM's run with a fresh name."""
    return dict(RECORDED["fresh name"]["answers"])


@pytest.mark.parametrize("scene", ["reload", "forced", "salt"])
def test_the_engine_with_vllms_key_says_the_same_wrong_words(scene: str) -> None:
    """Given: with the name as the key, `mini_vllm` gives vLLM's answers, the wrong ones included."""
    played = support.play(scene, support.by_name)
    for request, tokens in RECORDED[scene]["answers"].items():
        got = played["answers"][request]
        assert got == tokens, f"{request!r} says {text(got)} here and {text(tokens)} in vLLM"
    hits, due = played["cached"], RECORDED[scene]["cached"]
    assert hits == due, f"tokens from the cache: {hits} here, {due} in vLLM"


def test_with_your_key_a_reload_is_answered_by_the_new_weights(lab: ModuleType) -> None:
    """The engine with your key: after the reload Ada gets what a fresh name gets. Cy keeps her blocks."""
    played = support.play("reload", support.by_lab(lab))
    for request in ("ada 2", "ada 3", "ada 4"):
        got, due = played["answers"][request], truth()[request]
        assert got == due, f"{request!r} says {text(got)}; with a fresh name {text(due)}"
    assert played["cached"]["cy 2"] == 128, (
        f"Cy finds {played['cached']['cy 2']} of 128 tokens in the cache, and her adapter is as it was"
    )
    check_audit(lab, support.rows_of(played), {}, "the engine with your key")


def test_with_your_key_requests_under_way_do_no_harm(lab: ModuleType) -> None:
    """Old and new weights answer side by side, and a salt that is a name finds nothing."""
    played = support.play("forced", support.by_lab(lab))
    for request, due in (
        ("ada 2", truth()["ada 3"]),
        ("ada long", RECORDED["forced"]["answers"]["ada long"]),
    ):
        got = played["answers"][request]
        assert got == due, f"{request!r} says {text(got)}, and it should say {text(due)}"
    cached = support.play("salt", support.by_lab(lab))["cached"]["noor 1"]
    assert cached == 0, f"without an adapter, salted 'ada': {cached} tokens from Ada's blocks"


# ---- the second mend -----------------------------------------------------------------------------


def test_a_reset_with_nothing_under_way(lab: ModuleType) -> None:
    """With the name as the key, `reload_with_reset` makes Ada's next answer the new weights'."""
    with support.mini_server(support.by_name) as server:
        support.begin(server)
        before = server.steps
        lab.reload_with_reset(server, "ada", "telegram")
        waited = server.steps - before
        assert not waited, f"nothing was under way, and the reload waited {waited} steps"
        server.ask("ada 2", "ada")
        server.run()
        got, due = server.answers["ada 2"], truth()["ada 2"]
        assert got == due, f"'ada 2' says {text(got)}; with a fresh name {text(due)}"


def test_a_reset_with_requests_under_way(lab: ModuleType) -> None:
    """Ada's and Cy's requests are under way: both end as they would have, and the next is answered by the new
    weights."""
    with support.mini_server(support.by_name) as server:
        support.start_two(server)
        before = server.steps
        lab.reload_with_reset(server, "ada", "telegram")
        waited = server.steps - before
        assert server.unfinished("cy"), f"it waited {waited} steps, until Cy's request had finished"
        server.ask("ada 2", "ada", support.LONGER)
        server.run()
        old = RECORDED["forced"]["answers"]
        for request, due in (
            ("ada 2", truth()["ada 3"]),
            ("ada long", old["ada long"]),
            ("cy long", old["cy long"]),
        ):
            got = server.answers[request]
            assert got == due, (
                f"{request!r} says {text(got)}, and it should say {text(due)}; the reload waited "
                f"{waited} steps"
            )
        assert waited == 12, f"Ada's request lacked 12 tokens, and the reload waited {waited} steps"


# ---- what each costs -----------------------------------------------------------------------------


@pytest.mark.parametrize("mend", ["key", "reset"])
@pytest.mark.parametrize("situation", support.MEASURED)
def test_your_bill_is_what_the_engine_pays(lab: ModuleType, situation: str, mend: str) -> None:
    """`bill` beside the engine: blocks not found, tokens computed again, steps waited."""
    tenants, paid = support.measure(lab, situation, mend)
    by = "with your hash_key" if mend == "key" else "in and after your reload_with_reset"
    got = lab.bill(tenants, "ada", mend)
    for what in ("blocks", "tokens", "steps"):
        mine, due = getattr(got, what), getattr(paid, what)
        assert mine == due, (
            f"{situation}, {mend}: the engine, {by}, pays the {what} {due}; your bill has {mine}"
        )
