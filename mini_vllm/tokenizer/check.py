"""What a `tokenizer.json` may get wrong, found when it is read and not when the first text comes.

The `tokenizers` library finds the same when it reads the file, in the words of its parser; here
each message names the field and the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.config.checks import MOST, CheckpointError
from mini_vllm.utils.untrusted import is_text, shorten_repr

_NODES = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
_DEEPEST = 50


def _rule(field: str, rule: str, value: object) -> CheckpointError:
    return CheckpointError(f"{field} must be {rule}, got {shorten_repr(value)}")


def check_shape(data: Mapping[str, Any]) -> None:
    """What holds for every `tokenizer.json`: its parts, and the tokens added to the vocabulary.

    Raises:
        CheckpointError: naming the field and the rule.
    """
    model = data.get("model")
    if not isinstance(model, dict):
        raise _rule("model", "an object", model)
    if not isinstance(model.get("type", "BPE"), str):
        raise _rule("model.type", "text", model["type"])
    if model.get("type", "BPE") == "BPE" and not isinstance(model.get("vocab"), dict):
        raise _rule("model.vocab", "an object of token and id", model.get("vocab"))
    for field, members in _NODES.items():
        _check_node(field, members, data.get(field), 0)
    added = data.get("added_tokens", [])
    if not isinstance(added, list):
        raise _rule("added_tokens", "a list", added)
    ids: dict[str, int] = {}
    contents: dict[int, str] = {}
    for i, token in enumerate(added):
        field = f"added_tokens[{i}]"
        if not isinstance(token, dict):
            raise _rule(field, "an object", token)
        content = token.get("content")
        if not isinstance(content, str) or not content or not is_text(content):
            raise _rule(f"{field}.content", "text with something in it", content)
        token_id = _check_id(f"{field}.id", token.get("id"))
        for flag in ("special", "normalized", "single_word", "lstrip", "rstrip"):
            if type(token.get(flag, False)) is not bool:
                raise _rule(f"{field}.{flag}", "true or false", token[flag])
        if ids.setdefault(content, token_id) != token_id:
            raise CheckpointError(
                f"{field}.id is {token_id}, but {shorten_repr(content)} has the id {ids[content]} already"
            )
        if contents.setdefault(token_id, content) != content:
            raise CheckpointError(
                f"{field}.id {token_id} is that of {shorten_repr(contents[token_id])} already"
            )


def _check_node(field: str, members: str, node: Any, depth: int) -> None:
    if node is None and not depth:
        return
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        raise _rule(field, "an object with a type" + ("" if depth else ", or null"), node)
    if node["type"] != "Sequence":
        return
    if depth == _DEEPEST:
        raise CheckpointError(f"{field}: a Sequence in more than {_DEEPEST} others")
    if not isinstance(node.get(members), list):
        raise _rule(f"{field}.{members}", "a list", node.get(members))
    for i, member in enumerate(node[members]):
        _check_node(f"{field}.{members}[{i}]" if depth < 3 else field, members, member, depth + 1)


def _check_id(field: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise _rule(field, f"an id from 0 to {MOST}", value)
    return value


def check_byte_level(data: Mapping[str, Any]) -> None:
    """What `ByteLevelBPE` relies on beside `check_shape`: vocabulary, merges, template.

    Raises:
        CheckpointError: naming the field and the rule.
    """
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    tokens: dict[int, str] = {}
    for token, token_id in vocab.items():
        _check_id(f"model.vocab[{shorten_repr(token)}]", token_id)
        if not is_text(token):
            raise _rule("a token of model.vocab", "Unicode text", token)
        if tokens.setdefault(token_id, token) != token:
            raise CheckpointError(
                f"model.vocab gives id {token_id} to both {shorten_repr(tokens[token_id])} and "
                f"{shorten_repr(token)}"
            )
    for i, added in enumerate(data.get("added_tokens", [])):
        known = tokens.get(added["id"], added["content"])
        if known != added["content"] or vocab.get(known, added["id"]) != added["id"]:
            raise CheckpointError(
                f"added_tokens[{i}] gives id {added['id']} to {shorten_repr(added['content'])}, model.vocab "
                "says otherwise"
            )
    if not isinstance(merges, list):
        raise _rule("model.merges", "a list", merges)
    for i, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(p and isinstance(p, str) for p in pair)
        ):
            raise _rule(f"model.merges[{i}]", "two tokens", merge)
        for token in (*pair, "".join(pair)):
            if token not in vocab:
                raise CheckpointError(
                    f"model.merges[{i}], {shorten_repr(merge)}, needs the token {shorten_repr(token)}, "
                    "which is not "
                    "in model.vocab"
                )
    for step in _flat(data["pre_tokenizer"], "pretokenizers"):
        for flag in ("add_prefix_space", "use_regex"):
            if type(step.get(flag, True)) is not bool:
                raise _rule(f"pre_tokenizer.{flag}", "true or false", step[flag])
    for step in _flat(data.get("post_processor"), "processors"):
        if step["type"] == "TemplateProcessing":
            _check_template(step)


def _flat(node: Any, members: str) -> list[Any]:
    if node is None:
        return []
    if node["type"] != "Sequence":
        return [node]
    return [step for member in node[members] for step in _flat(member, members)]


def _check_template(step: Mapping[str, Any]) -> None:
    special = step.get("special_tokens")
    if not isinstance(special, dict):
        raise _rule("post_processor.special_tokens", "an object", special)
    for name, entry in special.items():
        ids = entry.get("ids") if isinstance(entry, dict) else None
        if not isinstance(ids, list):
            raise _rule(
                f"post_processor.special_tokens[{shorten_repr(name)}]", "an object with ids", entry
            )
        for token_id in ids:
            _check_id(f"post_processor.special_tokens[{shorten_repr(name)}].ids", token_id)
    single = step.get("single")
    if not isinstance(single, list):
        raise _rule("post_processor.single", "a list", single)
    texts = 0
    for i, item in enumerate(single):
        field = f"post_processor.single[{i}]"
        if not isinstance(item, dict) or not item.keys() & {"Sequence", "SpecialToken"}:
            raise _rule(field, "a Sequence or a SpecialToken", item)
        if "Sequence" in item:
            texts += 1
            continue
        name = item["SpecialToken"].get("id") if isinstance(item["SpecialToken"], dict) else None
        if not isinstance(name, str) or name not in special:
            raise _rule(f"{field}.SpecialToken.id", "one of special_tokens", name)
    if texts != 1:
        raise CheckpointError(f"post_processor.single must hold one Sequence, it holds {texts}")


def special_tokens(config: Mapping[str, Any]) -> dict[str, str | None]:
    """The spelling of bos and eos, where `tokenizer_config.json` or its like names them.

    Raises:
        CheckpointError: one that is no text.
    """
    names: dict[str, str | None] = {}
    for key in ("bos_token", "eos_token"):
        if key not in config:
            continue
        token = config[key]
        content = token.get("content") if isinstance(token, dict) else token
        if content is not None and not isinstance(content, str):
            raise _rule(key, "text, null, or an object with content", token)
        names[key] = content
    return names
