"""Simple sentences about anything: subjects of a few classes, and predicates true of the class.

The facts of the other lists teach the model what is so. This text teaches it how a sentence goes
on after an opening that it has never seen: a large number of subjects, openers and clauses, each
followed by one of a few dozen predicates that are true of every member of its class.

The rules stand in `facts/grammar.lst`. In a rule `{x}` expands x, `{x.s}` and `{x.p}` expand it in
the singular and in the plural, `{~x}` is about another subject and `{per.x}` about one of a class
(`dom` for any class of `DOMAIN`); `need+` is a verb and `block*` a noun to be inflected; `it^`,
`obj^`, `its^` and `one^` agree with the subject, and `a~` is "a" or "an". `{NP}`, `{SHORT}`, `{N}`,
`{VP}` and `{EV}` are the subject in words, without what follows the noun, its noun, what is true of
it and what may happen to it. `{FACT}` is a true clause and `{entity}` a name from `entities.lst`.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from scripts.tiny_llama.entities import Entity, capital, varied

PATH = Path(__file__).parent / "facts" / "grammar.lst"
CLASSES = {"req": 5, "mem": 6, "sys": 6, "idea": 5, "per": 3, "out": 3, "unc": 3}
DOMAIN = ("req", "mem", "sys", "idea")  # inference engines
GROUPS = {"big": 3, "small": 3, "bad": 2, "good": 2, "any": 5}
FORMS = {"be": ("is", "are"), "have": ("has", "have"), "do": ("does", "do"), "go": ("goes", "go")}
AGREEING = {
    "it^": ("it", "they"),
    "its^": ("its", "their"),
    "one^": ("one", "ones"),
    "obj^": ("it", "them"),
}
PLURALS = {"child": "children", "matrix": "matrices", "index": "indices"}
_REFERENCE = re.compile(r"\{(~?)(?:(dom|req|mem|sys|idea|per|out|unc)\.)?(\w+?)(?:\.([sp]))?\}")
_ADJECTIVE = re.compile("est( of the)?$|most important$|only|usual|^(large|small|good|new|old)$")
_ONSETS = ["b", "bl", "br", "d", "dr", "f", "fl", "g", "gr", "h", "k", "l", "m", "n", "p", "pl"]
_ONSETS += ["qu", "r", "s", "sk", "sn", "st", "t", "tr", "v", "w", "z", "sch", "th", "ch", "j"]
_VOWELS = ["a", "e", "i", "o", "u", "ee", "oo", "ai", "ou", "é", "ä", "ø", "ü", "ia"]
_CODAS = ["", "b", "ck", "d", "f", "g", "l", "lt", "m", "mp", "n", "nd", "p", "r", "rk", "t", "x"]


@dataclass(frozen=True)
class Subject:
    """What a sentence is about: a class, a number and a group of adjectives ("" for none)."""

    kind: str
    plural: bool
    group: str


def plural_of(noun: str) -> str:
    """The plural of the last word of a noun."""
    *before, last = noun.split(" ")
    if last in PLURALS:
        last = PLURALS[last]
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ies"
    else:
        last += "es" if last.endswith(("s", "x", "ch", "sh", "z")) else "s"
    return " ".join([*before, last])


def third_person(verb: str) -> str:
    """The verb after a singular subject."""
    return verb + "es" if verb.endswith(("ch", "sh", "x", "ss")) else verb + "s"


class Grammar:
    """The rules of `facts/grammar.lst`, and what is known about single things."""

    def __init__(self, entities: list[Entity], rng: random.Random, path: Path = PATH) -> None:
        """Read the rules.

        Raises:
            ValueError: a line that is no rule.
        """
        self.rng = rng
        self.entities = entities
        self.rules: dict[str, list[str]] = {}
        for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            name, colon, rest = raw.partition(":")
            if not raw or raw.startswith("#"):
                continue
            if not colon:
                raise ValueError(f"{path.name}:{number}: expected 'name: a | b': {raw!r}")
            self.rules[name] = [part.strip() for part in rest.split(" |")]

    def sentence(self) -> str:
        """One or two sentences."""
        rule = self.rng.choices(["S", "open", "more"], [36, 36, 28])[0]
        text = self.fill(f"{{{rule}}}", self.subject())
        return ". ".join(capital(part) for part in text.split(". "))

    def fill(self, text: str, subject: Subject) -> str:
        """A text of references and own words, spelled out."""
        words = re.sub(r" +", " ", self._fill(text, subject)).strip()
        return re.sub(r"\ba~ (\w)", _article, words).replace(" ,", ",")

    def subject(self) -> Subject:
        """Any subject."""
        kind = self.rng.choices(list(CLASSES), list(CLASSES.values()))[0]
        group = ""
        if self.rng.random() < 0.45:
            group = self.rng.choices(list(GROUPS), list(GROUPS.values()))[0]
        return self._subject(kind, self.rng.random() < 0.42, group)

    def _subject(self, kind: str, plural: bool, group: str) -> Subject:
        if kind == "unc":  # what is not counted
            return Subject(kind, False, "")
        return Subject(kind, plural, "any" if group and kind in ("per", "out") else group)

    def _rule(self, name: str, subject: Subject) -> str:
        choices = self.rules.get(f"{name}_{'p' if subject.plural else 's'}") or self.rules[name]
        return self._fill(self.rng.choice(choices), subject)

    def _fill(self, text: str, subject: Subject) -> str:
        # Own words are inflected here; what a reference brings in agrees with its own subject.
        pieces = re.split(r"(\{[^{}]*\})", text)
        return "".join(
            self._reference(piece, subject) if i % 2 else _inflect(piece, subject.plural)
            for i, piece in enumerate(pieces)
        )

    def _reference(self, text: str, subject: Subject) -> str:
        match = _REFERENCE.fullmatch(text)
        if match is None:
            raise ValueError(f"no reference to a rule: {text!r}")
        other, kind, name, number = match.groups()
        if other or kind:
            fresh = self.subject()
            if kind == "dom":
                kind = self.rng.choice(DOMAIN)
            subject = self._subject(kind or fresh.kind, fresh.plural, fresh.group)
        if number and subject.kind == "unc":
            subject = self._subject("idea", number == "p", subject.group)
        elif number:
            subject = Subject(subject.kind, number == "p", subject.group)
        builtin = getattr(self, f"_{name.lower()}", None)
        return builtin(subject) if builtin else self._rule(name, subject)

    def _np(self, subject: Subject) -> str:
        short = self._short(subject)
        return f"{short} {self._post(subject)}" if self.rng.random() < 0.3 else short

    def _short(self, subject: Subject) -> str:
        det = self._rule("det_unc" if subject.kind == "unc" else "det", subject)
        if subject.group not in ("", "any"):
            # The adjective decides what is true, so no other may stand before it.
            while _ADJECTIVE.search(det):
                det = self._rule("det", subject)
        adjective = ""
        if subject.group and not _ADJECTIVE.search(det):
            adjective = self._rule(f"adj_{subject.group}", subject)
        return f"{det} {adjective} {self._n(subject)}"

    def _n(self, subject: Subject) -> str:
        noun = self._rule(f"n_{subject.kind}", subject).removesuffix("*")
        return plural_of(noun) if subject.plural else noun

    def _vp(self, subject: Subject) -> str:
        by_group = subject.group not in ("", "any") and self.rng.random() < 0.6
        return self._rule(f"vp_{subject.group if by_group else subject.kind}", subject)

    def _ev(self, subject: Subject) -> str:
        return self._rule(f"ev_{subject.kind}", subject)

    def _post(self, subject: Subject) -> str:
        name = f"post_{subject.kind}"
        return self._rule(name if name in self.rules else "post", subject)

    def _if(self, subject: Subject) -> str:
        return self._rule(f"if_{self.rng.choice(['any', subject.kind])}", subject)

    def _fact(self, _: Subject) -> str:
        entity = varied(self.rng.choice(self.entities), self.rng)
        return f"{entity.name} {self.rng.choice(entity.facts)}"

    def _entity(self, _: Subject) -> str:
        return self.rng.choice(self.entities).name

    def _nonce(self, _: Subject) -> str:
        parts = self.rng.choice([1, 2, 2])
        syllables = [self.rng.choice(_ONSETS) + self.rng.choice(_VOWELS) for _ in range(parts)]
        return "".join(syllables) + self.rng.choice(_CODAS)

    def _capital_nonce(self, subject: Subject) -> str:
        return capital(self._nonce(subject))

    def _number(self, _: Subject) -> str:
        return str(self.rng.randint(2, 99))


def _article(match: re.Match[str]) -> str:
    letter = match.group(1)
    return f"{'an' if letter in 'aeiouéäüø' else 'a'} {letter}"


def _inflect(text: str, plural: bool) -> str:
    """Make the marked verbs and pronouns of a rule agree."""

    def verb(match: re.Match[str]) -> str:
        word = match.group(1)
        if word in FORMS:
            return FORMS[word][plural]
        return word if plural else third_person(word)

    text = re.sub(r"(\w+)\+", verb, text)
    for mark, forms in AGREEING.items():
        text = text.replace(mark, forms[plural])
    return text
