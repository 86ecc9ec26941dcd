"""Grader of mathematical answers: which one a text gives, and whether it is the reference.

What stands in boxes is the answer; without a box, what is said to be the answer; without that, the
last expression. `math-verify` decides whether expressions are equal. This module decides what it
must not be asked: an answer has to be worked out, has to be one answer, and must not contradict
itself. Against a plain number the answer must be a number, too (`numerals.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

import math_verify
import sympy
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from plexsvc.reward.programs.numerals import Number, last_number, read, simplify

_BOX: Final = re.compile(r"\\f?boxed\s*\{|\\fbox\s*\{")
_SAID: Final = re.compile(
    r"\banswer\s*(?:is|:|=)\s*(?:is|:)?\s*((?:(?!\banswer\s*(?:is|:|=))[^\n])*?)"
    r"(?=[.!]?\s*(?:\n|$)|[.!?]\s|\s[Ww]ait\b)",
    re.IGNORECASE,
)
_MATH: Final = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_DENIES: Final = re.compile(r"\\neq?\b|≠|\bnot\b|n't\b|\\not\b", re.IGNORECASE)
_DENIES_NEXT: Final = re.compile(
    r"(?:not|n't|\bnever|\d\W*\bor)(?:\s+(?:be|equal to|equal|the answer))*[\s$*(\[\\]*$",
    re.IGNORECASE,
)
_ADDS: Final = re.compile(
    r"[\s$.)\]*]*(?:,?\s*or\b[\s$\\(a-zA-Z=]{0,24}|(?:,?\s*and\b|[,;])[\s$\\(]*)[-+]?\d",
    re.IGNORECASE,
)
_TASKS: Final = re.compile(
    r"\\[dt]?binom\s*\{?\d+\}?\s*\{?\d+\}?|\\gcd|\\(?:operatorname|text|mathrm)\s*\{\s*(?:lcm|gcd|mod)|"
    r"\\[bp]?mod\b|\\det\b|\blcm\b|\bgcd\b|\bmod\b"
)
"""What `math-verify` computes while it reads."""
_BASE: Final = re.compile(r"\d\s*_\s*\{?\s*(\d+)")
_ABOUT: Final = re.compile(r"\\approx(?![A-Za-z])|≈")
_LETTER: Final = re.compile(
    r"(?:[Oo]ption |[Cc]hoice )?\(?([A-J])(?:\)|[.:]|\)[.:]|\Z)\s*(.*)", re.DOTALL
)
_NOT_CHOSEN: Final = re.compile(
    r"\b[A-J][).:]|\A\W*(?:[A-J]\W*\Z|(?:is|isn't|or|and|not|wrong|incorrect|false)\b)"
)
_ALL_WHOLE: Final = re.compile(r",?\s*[a-z]\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\s*$")


MAX_BARE: Final = 256
"""Characters of a text that may be the answer as a whole."""


class NoExpressionError(ValueError):
    """The reference is nothing that can be compared."""


def is_right(text: str, reference: str) -> bool:
    """Return whether a text answers with the reference, worked out and nothing else.

    Raises:
        NoExpressionError: for a reference that is no expression.
    """
    inside = next(_boxes(reference), None)
    reference = (inside[1] if inside else reference).strip().strip("$").strip()
    expected = read(reference) or _Expression(reference)
    if isinstance(expected, _Expression) and not expected.parsed:
        raise NoExpressionError(reference)
    text = text.rpartition("</think>")[2]
    boxes = [box for box in _boxes(text) if box[1].strip(" .\\ld$")]
    if boxes:
        return _are_boxes_right(text, boxes, expected)
    if re.search(r"\\f?boxed\s*\{(?!\s*\.*\})", text):
        return False  # it was cut in its box
    said = [found[1] for found in _SAID.finditer(text) if found[1]]
    if isinstance(expected, Number):
        last = last_number(text)
        envs = [next(filter(None, env.groups())) for env in _MATH.finditer(text)]
        known = envs[-1:] if envs and text.rstrip(" .\n").endswith(("$", "\\]", "\\)")) else []
        numbers = [number for one in said if (number := last_number(one)) is not None]
        return (
            last is not None
            and all(number.means(expected) for number in (*numbers, last))
            and all(_is_number_right(one, expected) for one in known)
        )
    if said and not _MATH.search(said[-1]):
        return all(expected.is_answered_by(one.strip(" *")) for one in said)
    envs = list(_MATH.finditer(text))
    if envs and _DENIES_NEXT.search(text[max(0, envs[-1].start() - 64) : envs[-1].start()]):
        return False
    if not said and not envs and len(text) < MAX_BARE:
        return expected.is_answered_by(text.strip(" *.\n")) or expected.is_found_in(text)
    alone = [one for one in said if len(_MATH.findall(one)) == 1]
    return all(map(expected.is_found_in, (*alone, text)))


def _boxes(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield each box that is closed: where it begins, what is in it, and where it ends."""
    at = 0
    while found := _BOX.search(text, at):
        depth, at = 1, found.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0) if text[at - 1] != "\\" else 0
            at += 1
        if depth:
            return
        inside = text[found.end() : at - 1]
        yield found.start(), _BOX.sub("{", inside), at


def _are_boxes_right(
    text: str, boxes: list[tuple[int, str, int]], expected: Number | _Expression
) -> bool:
    first, last = boxes[0][0], boxes[-1][2]
    after = simplify(text[last : last + (1 << 12)])
    if _DENIES_NEXT.search(text[max(0, first - 64) : first]) or _ADDS.match(after):
        return False
    for said in _SAID.finditer(after):
        number = last_number(said[1])
        if number is not None and isinstance(expected, Number) and not number.means(expected):
            return False
    insides = list(dict.fromkeys(inside.strip() for _, inside, _ in boxes))
    if isinstance(expected, Number):
        return all(_is_number_right(inside, expected) for inside in insides)
    if all(map(expected.is_answered_by, insides)):
        return True
    lists = (insides, [inside.strip() for _, inside, _ in boxes])
    return len(insides) > 1 and any(expected.is_answered_by(", ".join(one)) for one in lists)


def _is_number_right(answer: str, expected: Number) -> bool:
    """Whether an answer is the expected number: alone, or at the end of what equals it."""
    if about := _about(answer):
        found = last_number(about[0], is_only=True)
        if found is not None and not found.means(expected):  # 41.6 is about 42
            return _is_number_right(about[-1], expected) and _is_near(about[-1], found.value)
        return _is_number_right(about[0], expected) and all(
            _is_near(one, expected.value) for one in about[1:]
        )
    answer = re.sub(r"^\s*[A-Za-z]\s*\\in\s*(?=\\\{)", "", answer)
    *others, last = _sides(answer)
    found = last_number(last, is_only=True)
    if found is None and len(others) == 1:  # 5 = x
        others, last = [last], others[0]
        found = last_number(last, is_only=True)
    if found is None or not found.means(expected):
        return False
    reference = _Expression(str(expected.value)) if others else None
    return reference is None or all(reference.agrees_with(other, expected) for other in others)


def _about(answer: str) -> list[str]:
    """Return what stands on the sides of `≈`; nothing where it has no two."""
    parts = _ABOUT.split(answer)
    return parts if parts[0].strip() and len(parts) > 1 else []


def _is_near(written: str, value: Any) -> bool:
    """Whether a number rounds a value, or cuts it, to the digits that it has."""
    number = last_number(written, is_only=True)
    places = re.search(r"\.(\d*)\D*$", written)
    unit = Fraction(1, 10 ** len(places[1])) if places else Fraction(1)
    if number is None:
        return False
    away = value - number.value
    return bool(abs(away) * 2 <= unit or 0 <= (away if value > 0 else -away) < unit)


def _sides(equation: str, at: str = "=") -> list[str]:
    """Return what stands between the equals signs, or commas, that are in no brackets."""
    depth, sides = 0, [""]
    for before, char in zip(" " + equation, equation, strict=False):
        depth += (char in "([{") - (char in ")]}")
        if char == at and depth <= 0 and before not in "<>!\\:":
            sides.append("")
        else:
            sides[-1] += char
    return sides


class _Expression:
    """A reference that `math-verify` compares."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.parsed = _parse(f"${text}$")

    def is_found_in(self, text: str) -> bool:
        found = _parse(text)
        return self._equals(found, str(found[-1]) if found else "")

    def is_answered_by(self, answer: str) -> bool:
        is_text = isinstance(self.parsed[0], str)  # math-verify cannot read it
        if _text_of(answer) == _text_of(self.text) and (is_text or "=" not in answer):
            return True
        if re.fullmatch(r"\(?[A-J]\)?", choice := simplify(self.text).strip()):
            chosen = _LETTER.match(simplify(answer).strip())
            if chosen and chosen[2]:
                return chosen[1] in choice and not _NOT_CHOSEN.search(chosen[2])
            answer = chosen[1] if chosen else answer
        if is_text:
            return False
        if about := _about(answer):
            value = sympy.N(self.parsed[0], 30)
            is_near = value.is_Float and all(_is_near(one, value) for one in about[1:])
            return is_near and self.is_answered_by(about[0])
        return self._equals(_parse(f"\\boxed{{{_without_styles(answer)}}}"), answer)

    def agrees_with(self, side: str, number: Number) -> bool:
        """Whether one side of an equation may be this number: it has its value, or is a name."""
        if re.fullmatch(r"\s*[A-Za-z]+'*\(.*\)\s*", side):
            return True  # P(X=2), f(3)
        if (found := read(side)) is not None:
            return found.means(number)
        parsed = _parse(f"\\boxed{{{side}}}")
        return not parsed or isinstance(parsed[0], str) or self._may_equal(parsed[0])

    def _equals(self, found: list[Any], written: str) -> bool:
        if not found:
            return False
        one, expected = found[0], self.parsed[0]
        described = [_described(expected, self.text), _described(one, written)]
        if None not in described and any(isinstance(x, _CHOICES) for x in (one, expected)):
            return bool(described[0] == described[1])
        if not _are_equal(self.parsed, found):
            return False
        if isinstance(one, str) or isinstance(expected, str):
            return True
        return self._has_the_form(found, written) and self._agrees_with_itself(one)

    def _has_the_form(self, found: list[Any], written: str) -> bool:
        """Whether an equal answer is worked out, and written as what the reference is."""
        one, expected = found[0], self.parsed[0]
        is_work_left = _tasks_of(one) - _tasks_of(expected) or any(
            pattern.search(written) and not pattern.search(self.text)
            for pattern in (_DENIES, _TASKS)
        )
        is_equation = isinstance(expected, sympy.Eq) and not isinstance(one, Relational)
        return (
            not is_work_left
            and {_shape(written), _shape(self.text)} != {"point", "set"}
            and _BASE.findall(written) == _BASE.findall(self.text)
            and not (is_equation and not any(map(_is_name, expected.args)))
            and not (isinstance(expected, sympy.Set) and _is_unsolved(one))
            and self._repeats(found)
        )

    def _agrees_with_itself(self, one: Any) -> bool:
        """Whether an equation does: one must not contradict the reference, several are a choice."""
        is_compared = isinstance(self.parsed[0], Relational) or isinstance(one, sympy.Set)
        equations = () if is_compared else one.atoms(sympy.Eq)
        return all(self._may_equal(side) for equation in equations for side in equation.args)

    def _repeats(self, found: list[Any]) -> bool:
        """Whether a list has each item as often as the reference; sets in braces need not."""
        sets = (self.parsed[0], found[0])
        mine, theirs = str(self.parsed[-1]), str(found[-1])
        are_lists = all(isinstance(one, sympy.FiniteSet | sympy.Expr) for one in sets)
        if not are_lists or _shape(mine) == _shape(theirs) == "set":
            return True
        expected, items = _items(mine), _items(theirs)
        sizes = [len(one) if isinstance(one, sympy.FiniteSet) else 1 for one in sets]
        if len(expected) <= sizes[0] and len(items) <= sizes[1]:
            return True
        return len(expected) == len(items) and all(
            sum(_are_equal(one, other) for other in expected)
            == sum(_are_equal(one, other) for other in items)
            for one in expected
        )

    def _may_equal(self, side: Any) -> bool:
        symbols: set[Any] = getattr(side, "free_symbols", set())
        own: set[Any] = getattr(self.parsed[0], "free_symbols", set())
        if getattr(side, "is_Symbol", True) or side.atoms(AppliedUndef):
            return side not in own or side == self.parsed[0]
        if not symbols:
            return _are_equal(self.parsed, [side])
        is_unsolved = len(symbols) == 1 and side.atoms(sympy.Number, sympy.Function)
        return bool(own) or not is_unsolved


def _text_of(expression: str) -> str:
    """Return what an expression says of a name, or all of it, without space and sizes."""
    expression = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", expression)
    name = re.match(r"\s*[A-Za-z]\w*(?:\(\w+\))?\s*=", expression)
    said = _sides(expression)[-1] if name else expression
    return re.sub(r"\s|\\(?:left|right|[,;:!])|(?<=\\)[dt](?=frac)", "", said)


def _shape(text: str) -> str:
    """Return whether a text is written as a point, or an interval; as a set; or as neither."""
    text = text.strip("$ ").removeprefix("\\left")
    return "point" if text.startswith("(") else "set" if text.startswith("\\{") else ""


_CHOICES: Final = (sympy.FiniteSet, sympy.Ne)


def _described(answer: Any, written: str) -> Any:
    """Return the numbers that inequalities or an interval describe; None for anything else.

    Commas between inequalities mean `or` where no number fulfils all of them.
    """
    parts = answer.args if isinstance(answer, sympy.FiniteSet) else (answer,)
    are_unequal = all(
        isinstance(one, Relational) and not isinstance(one, sympy.Eq) for one in parts
    )
    if isinstance(answer, sympy.Interval | sympy.Union):
        return answer
    if not parts or not are_unequal or len(answer.free_symbols) != 1:
        return None
    try:
        sets = [one.as_set() for one in parts]
    except (NotImplementedError, TypeError, ValueError):
        return None
    both, either = sympy.Intersection(*sets), sympy.Union(*sets)
    if re.search(r"\bor\b|\\lor|\\cup", written):
        return either
    is_all = both is not sympy.S.EmptySet
    return (
        both
        if len(parts) == 1 or (is_all and re.search(r"\band\b|\\land", written))
        else (None if is_all else either)
    )


def _is_unsolved(one: Any) -> bool:
    """Whether an inequality says more than where a name lies."""
    is_inequality = isinstance(one, Relational) and not isinstance(one, sympy.Eq)
    return is_inequality and not any(
        side.is_Symbol and not other.free_symbols for side, other in (one.args, one.args[::-1])
    )


def _items(written: str) -> list[list[Any]]:
    """Return the items of a list, without the comma of thousands."""
    inside = re.sub(r"^\W*\\\{|\\(?:right)?\\?\}\W*$", "", written)
    inside = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", inside)
    return [_parse(f"${one}$") for one in _sides(inside, ",")]


def _is_name(side: Any) -> bool:
    return bool(side.is_Symbol or isinstance(side, AppliedUndef))


def _parse(text: str) -> list[Any]:
    # The stage has a timeout of its own; those of math-verify are signals.
    text = text.replace("\\varnothing", "\\emptyset").replace("\\lor", "\\text{ or }")
    return list(math_verify.parse(text, parsing_timeout=None))


def _are_equal(expected: list[Any], found: list[Any]) -> bool:
    """Return what `math-verify` says; an interval may be written as an inequality."""
    return bool(
        math_verify.verify(expected, found, timeout_seconds=None, allow_set_relation_comp=True)
    )


def _without_styles(text: str) -> str:
    text = re.sub(r"\\(?:mathbf|boldsymbol|underline|bm|mathit)\s*\{([^{}]*)\}", r"\1", text)
    return _ALL_WHOLE.sub("", text).rstrip(". ")


def _tasks_of(expression: Any) -> set[str]:
    """Return the names of the operations in an expression that are left to the reader."""
    found: set[str] = set()
    todo = list(expression.flat()) if isinstance(expression, sympy.MatrixBase) else [expression]
    heavy = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
    for node in (node for one in todo for node in sympy.preorder_traversal(one)):
        name = type(node).__name__
        if isinstance(node, heavy):
            found.add(name)
        elif not isinstance(node, sympy.Expr) or node.free_symbols or not node.args:
            continue
        elif isinstance(node, sympy.Function) or (_is_work(node) and node.doit().is_Rational):
            found.add(name)
    return found


def _is_work(node: Any) -> bool:
    """Whether a calculation with numbers is more than the way to write one of them."""
    match node:
        case sympy.Pow(args=(base, power)):
            return bool(power != -1 and not (base == 10 and power.is_Integer))
        case sympy.Mul(args=factors):
            plain = [one for one in factors if one.is_Number and one != -1]
            return len(plain) > 1
        case sympy.UnevaluatedExpr():
            return False
        case _:
            return True
