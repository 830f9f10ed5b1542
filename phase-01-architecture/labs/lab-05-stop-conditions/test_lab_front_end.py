"""Lab 01-05, the front end: stop strings, and what may be shown while they could still come."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from course.learner.labs import load_support

support = load_support(__file__)


def pieces(lab: ModuleType, texts: list[str], *args: Any, **kwargs: Any) -> tuple[Any, Any, int]:
    """Feed a detector token texts up to the first stop: (stop string, detector, tokens used)."""
    detector = lab.StopStringDetector(*args, **kwargs)
    for count, text in enumerate(texts, 1):
        if (found := detector.update(text)) is not None:
            return found, detector, count
    return None, detector, len(texts)


# ---- the front end: stop strings -----------------------------------------------------------------


def test_stop_string_across_tokens(lab: ModuleType) -> None:
    """A stop string that begins in one token and ends in another, or lies inside one, is found."""
    for texts, used in (
        (["one ", "EN", "D two"], 3),
        (["one ", "E", "N", "D", "x"], 4),
        (["END"], 1),
        (["xENDx"], 1),
        (["EEN", "D"], 2),
    ):
        found, detector, count = pieces(lab, texts, ["END"])
        assert (found, count) == ("END", used), (
            f"tokens {texts}: 'END' is complete with token {used}. Yours found {found!r} after {count} "
            "token(s). Look in the text that the tokens make together, not in each token; a match at "
            "place 0 is a match, and a negative start would make find count from the end"
        )
        assert detector.output_text == "".join(texts[:used]).split("END")[0], (
            f"tokens {texts}: the text is cut right before 'END', yours is {detector.output_text!r}"
        )
    found, detector, _ = pieces(lab, ["E", "ND", "EN ", "D"], ["DEND"])
    assert (found, detector.output_text) == (None, "ENDEN D"), (
        f"'DEND' is not in 'ENDEN D'; yours found {found!r} and has {detector.output_text!r}"
    )


def test_include_stop_str_keeps_it(lab: ModuleType) -> None:
    """include_stop_str_in_output cuts after the stop string, so the token's text after it goes."""
    for texts in (["one EN", "D two"], ["one E", "ND"]):
        found, detector, _ = pieces(lab, texts, ["END"], include_stop_str_in_output=True)
        assert (found, detector.output_text) == ("END", "one END"), (
            f"tokens {texts}: with include_stop_str_in_output the text ends with the stop string, "
            f"'one END'; yours found {found!r} and has {detector.output_text!r}"
        )


def test_the_order_of_the_list_decides_within_one_token(lab: ModuleType) -> None:
    """If one token completes two stop strings, the first in the list wins, wherever it stands."""
    for stop, text in (
        (["b", "ab"], "xa"),
        (["ab", "b"], "x"),
        (["world", "hello"], "hello "),
        (["hello", "world"], ""),
    ):
        token = "xab" if "b" in stop else "hello world"
        found, detector, _ = pieces(lab, [token], stop)
        assert (found, detector.output_text) == (stop[0], text), (
            f"token {token!r} completes both of {stop}: vLLM takes them in the order given, so "
            f"{stop[0]!r} wins and the text is {text!r}. Yours: {found!r}, {detector.output_text!r}"
        )


def test_the_stop_string_completed_first_wins(lab: ModuleType) -> None:
    """Across tokens, the stop string that an earlier token completes ends the request."""
    found, detector, count = pieces(lab, ["hello", " world"], ["world", "hello"])
    assert (found, count, detector.output_text) == ("hello", 1, ""), (
        "'hello' is complete with the first token; nobody knows yet that 'world' will come. Yours "
        f"found {found!r} after {count} tokens"
    )


def test_the_leftmost_occurrence_is_cut(lab: ModuleType) -> None:
    """A token with the same stop string twice is cut at the first of them."""
    found, detector, _ = pieces(lab, ["one;two;three"], [";"])
    assert (found, detector.output_text) == (";", "one"), (
        f"'one;two;three' in one token: cut at the first ';', not {detector.output_text!r}"
    )


def test_min_tokens_bars_stop_strings_too(lab: ModuleType) -> None:
    """A stop string completed within min_tokens stays in the text, for good; later ones count."""
    found, detector, count = pieces(lab, ["a;", "b", "c", ";d"], [";"], min_tokens=2)
    assert (found, count, detector.output_text) == (";", 4, "a;bc"), (
        "min_tokens=2: the ';' in token 1 is text like any other, and stays so. Look only where a match "
        f"would end in the newest piece. Yours stopped at token {count} with {detector.output_text!r}"
    )
    found, detector, count = pieces(lab, ["a", "b;", "c;"], [";"], min_tokens=2)
    assert (count, detector.output_text) != (3, "ab"), (
        "min_tokens=2: you waited long enough, and then found the ';' of token 2. A match must end in "
        "the newest piece: begin to search at n - m + 1, not one place before"
    )
    assert (count, detector.output_text) == (3, "ab;c"), (
        f"min_tokens=2: token 2 is still one of the first two, so its ';' does not count, token 3's "
        f"does. Yours stopped at token {count} with {detector.output_text!r}"
    )
    found, detector, count = pieces(lab, ["xE", "N", "D"], ["END"], min_tokens=2)
    assert (found, detector.output_text) == ("END", "x"), (
        "min_tokens=2: 'END' begins in token 1 and ends in token 3. What counts is where it is "
        f"completed; yours found {found!r} and has {detector.output_text!r}"
    )


def test_min_tokens_of_zero_bars_nothing(lab: ModuleType) -> None:
    """With min_tokens at 0 the first token may end the request, and every token is counted."""
    found, detector, _ = pieces(lab, ["a;"], [";"])
    assert (found, detector.num_tokens) == (";", 1), (
        f"min_tokens is 0: the first token may complete a stop string; yours found {found!r} and counts "
        f"{detector.num_tokens} tokens"
    )
    found, detector, _ = pieces(lab, ["a", "", "b"], [])
    assert (found, detector.num_tokens, detector.output_text) == (None, 3, "ab"), (
        "without stop strings nothing is found, every token is counted (an empty piece is a token "
        f"too), and the text grows; yours: {found!r}, {detector.num_tokens}, {detector.output_text!r}"
    )


def test_the_text_of_eos_is_not_the_answers(lab: ModuleType) -> None:
    """A token that ended the request in the core adds no text, unless the stop string is included."""
    for include, text in ((False, "hi"), (True, "hi</s>")):
        detector = lab.StopStringDetector(["</s>"], include_stop_str_in_output=include)
        detector.update("hi")
        found = detector.update("</s>", stop_terminated=True)
        assert detector.output_text == text, (
            f"the core ended the request at the token '</s>', include_stop_str_in_output={include}: the "
            f"text is {text!r}, yours {detector.output_text!r}"
        )
        assert detector.num_tokens == 2, "the token has no text in the answer, yet it is a token"
        assert found == ("</s>" if include else None), (
            f"a piece that is left out is not searched either, one that is kept is; got {found!r} for "
            f"include_stop_str_in_output={include}"
        )


# ---- streaming -----------------------------------------------------------------------------------


def test_nothing_shown_is_taken_back(lab: ModuleType) -> None:
    """While a request runs, one character less than the longest stop string has is held back."""
    detector = lab.StopStringDetector(["END", ";"])
    assert detector.stop_buffer_length == 2, (
        f"the longest stop string has 3 characters. Its first 2 could be the end of what has come so "
        f"far: hold back 2, not {detector.stop_buffer_length}"
    )
    shown = []
    for piece in ["a", "bc", "E", "N", "x", "", "E", "N"]:
        detector.update(piece)
        shown.append(detector.next_text(finished=False))
        assert len("".join(shown)) == max(0, len(detector.output_text) - 2), (
            f"after {detector.output_text!r} all but the last 2 characters are shown, yours showed "
            f"{''.join(shown)!r}. What is sent to a client cannot be called back; and the end of a "
            "slice must not be negative, or it counts from the end"
        )
    detector.update("D")
    shown.append(detector.next_text(finished=True))
    assert "".join(shown) == detector.output_text == "abcENx", (
        f"'abcENxEND' stops before END. What was shown, joined, is the final text 'abcENx'; yours "
        f"showed {''.join(shown)!r} of {detector.output_text!r}"
    )


def test_held_back_text_comes_with_the_end(lab: ModuleType) -> None:
    """A request that ends for another reason shows what was held back: no character is lost."""
    detector = lab.StopStringDetector(["STOP"])
    detector.update("the ST")
    first = detector.next_text(finished=False)
    last = detector.next_text(finished=True)
    assert (first, last) == ("the", " ST"), (
        f"'the ST' and then the end by length: first 'the', 3 held back, then ' ST'. Yours showed "
        f"{first!r} and {last!r}. When the request has finished, nothing is left to wait for"
    )
    assert detector.next_text(finished=True) == "", "what was shown once is not shown again"


def test_nothing_is_held_back_needlessly(lab: ModuleType) -> None:
    """Without stop strings, or with ones that stay in the text, each piece is shown at once."""
    for stop, include in (([], False), (["STOP"], True), (["x"], False)):
        detector = lab.StopStringDetector(stop, include_stop_str_in_output=include)
        detector.update("the ST")
        text = detector.next_text(finished=False)
        assert text == "the ST", (
            f"stop={stop}, include_stop_str_in_output={include}: nothing shown could ever be cut out "
            f"again, so nothing is held back; yours showed {text!r} of 'the ST'"
        )
