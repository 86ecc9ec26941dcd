"""Grader of mathematical answers: which one a text gives, and whether it is the reference.

What stands in boxes is the answer; without a box, what is said to be the answer; without that, the
last expression. `math-verify` decides whether expressions are equal. This module decides what it
must not be asked: an answer has to be worked out, has to be one answer, and must not contradict
itself. Against a plain number the answer must be a number, too (`numerals.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    r"(?:\bnot|n't|\bnever|\d\W*\bor)(?:\s+(?:be|equal to|equal|the answer))*[\s$*(\[\\]*$",
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
    return len(insides) > 1 and expected.is_answered_by(", ".join(insides))


def _is_number_right(answer: str, expected: Number) -> bool:
    """Whether an answer is the expected number: alone, or at the end of what equals it."""
    *others, last = _sides(answer)
    found = last_number(last, is_only=True)
    if found is None and len(others) == 1:  # 5 = x
        others, last = [last], others[0]
        found = last_number(last, is_only=True)
    if found is None or not found.means(expected):
        return False
    reference = _Expression(str(expected.value)) if others else None
    return reference is None or all(reference.agrees_with(other, expected) for other in others)


def _sides(equation: str) -> list[str]:
    """Return what stands between the equals signs that are in no brackets."""
    depth, sides = 0, [""]
    for before, char in zip(" " + equation, equation, strict=False):
        depth += (char in "([{") - (char in ")]}")
        if char == "=" and depth <= 0 and before not in "<>!\\:":
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
        if is_text:
            return False
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
        if not found or not _are_equal(self.parsed, found):
            return False
        one, expected = found[0], self.parsed[0]
        if isinstance(one, str) or isinstance(expected, str):
            return True
        is_work_left = _tasks_of(one) - _tasks_of(expected) or any(
            pattern.search(written) and not pattern.search(self.text)
            for pattern in (_DENIES, _TASKS)
        )
        shapes = {_shape(written), _shape(self.text)}
        if is_work_left or shapes == {"point", "set"}:
            return False
        # A set of equations is a choice; one equation must not contradict the reference.
        is_compared = isinstance(expected, Relational) or isinstance(one, sympy.Set)
        equations = () if is_compared else one.atoms(sympy.Eq)
        return all(self._may_equal(side) for equation in equations for side in equation.args)

    def _may_equal(self, side: Any) -> bool:

        symbols: set[Any] = getattr(side, "free_symbols", set())
        if getattr(side, "is_Symbol", True) or side.atoms(AppliedUndef):
            return True
        if not symbols:
            return _are_equal(self.parsed, [side])
        own = self.parsed[0].free_symbols
        is_unsolved = len(symbols) == 1 and side.atoms(sympy.Number, sympy.Function)
        return bool(own) or not is_unsolved


def _text_of(expression: str) -> str:
    """Return what an expression says of a name, or all of it, without space and sizes."""
    expression = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", expression)
    return re.sub(r"\s|\\(?:left|right|[,;:!])|(?<=\\)[dt](?=frac)", "", _sides(expression)[-1])


def _shape(text: str) -> str:
    """Return whether a text is written as a point, or an interval; as a set; or as neither."""
    text = text.strip("$ ").removeprefix("\\left")
    return "point" if text.startswith("(") else "set" if text.startswith("\\{") else ""


def _parse(text: str) -> list[Any]:

    # The stage has a timeout of its own; those of math-verify are signals.
    text = text.replace("\\varnothing", "\\emptyset")
    return list(math_verify.parse(text, parsing_timeout=None))


def _are_equal(expected: list[Any], found: list[Any]) -> bool:
    """Return what `math-verify` says; an interval may be written as an inequality."""
    return bool(
        math_verify.verify(expected, found, timeout_seconds=None, allow_set_relation_comp=True)
    )


def _without_styles(text: str) -> str:
    return re.sub(
        r"\\(?:mathbf|boldsymbol|underline|bm|mathit)\s*\{([^{}]*)\}", r"\1", text
    ).rstrip(". ")


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
