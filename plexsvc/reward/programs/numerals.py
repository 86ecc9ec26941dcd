"""Numbers as people write them: read whole, or found as the last one of a text.

A comma or a thin space separates thousands, a point begins the decimals. A plain space, which may
stand between two numbers, does so before groups that are none by themselves: `000` to `099`. A sum,
a power or a root is no number but a task, so nothing here computes. A power of ten is read, because
it is a way to write a number.
"""

# ruff: noqa: RUF001 - signs that look alike are what is told apart here

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

ENOUGH_DIGITS: Final = 6
"""Significant digits with which a rounded number stands for one that has more."""
MAX_CHARS: Final = 1 << 16
"""Of the end of a text that is looked at."""

_THIN: Final = "\u2009"
"""Stands for each space that may separate thousands."""

_WHOLE: Final = (
    rf"(?:[1-9]\d{{0,2}}(?:,\d{{3}})+(?!,?\d)|[1-9]\d{{0,2}}(?:{_THIN}\d{{3}})+(?!\d)"
    rf"|[1-9]\d{{0,2}}(?:[ ]0\d\d)+(?![ ]?\d)|\d+)"
)
_POWER: Final = r"10\^[({]?[-+]?\d{1,3}[)}]?"
_NUMBER: Final = re.compile(
    rf"""(?P<sign>[-+]?)[$€£¥]?(?:
      (?P<ten>{_POWER})
    | (?:(?P<mixed>\d{{1,9}})[ ](?!0\d))?(?P<over>{_WHOLE}(?:\.\d+)?)/(?P<under>{_WHOLE})
    | (?P<decimal>{_WHOLE}(?:\.\d*)?|\.\d+)(?:\((?P<repeated>\d+)\)~)?
      (?:[eE](?P<e>[-+]?\d{{1,3}})(?!\d)|\*(?P<times>{_POWER}))?
    )""",
    re.VERBOSE,
)
_SCALES: Final = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
}
_SCALE: Final = re.compile(rf"[ {_THIN}]({'|'.join(_SCALES)})\b", re.IGNORECASE)
_UNIT: Final = re.compile(
    rf"[ {_THIN}({{]*(?P<before>(?:square|sq\.?|cubic) )?"
    r"(?P<name>%|°|[A-Za-zµ€£¢]+)(?P<power>[²³]?)"
)

_DENIED_BEFORE: Final = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|except|or|plus|minus|times|over|versus|vs|than|out of|"
    r"under|below|above|exceeds?|almost|nearly|anything but|ln|log|exp|sqrt|sin|cos|tan|"
    r"(?<!\bcomes )(?<!\badds )(?<!\badd )(?<!\bsums )(?<!\bsum )(?<!\bamounts )up to|"
    r"else|otherwise|then \d[^\n.]*\bif\b[^\n.]*\bthen|"
    r"(?:twice|double|half|root|square|cube)(?: of)?)|n't|"
    r"\bat (?:least|most)|[≠<>≤≥±+*/^|√∑∫∏&-]|[A-Za-z_]\(|\}\{|"
    r"\d\W*(?:x|choose|mod(?:ulo)?|divided by|multiplied by|to the power(?: of)?)|"
    r"\d:(?!\s)|[<>]=)(?:\s+(?:equals?|to|be|is|are|an?|the|as|maybe|perhaps|even))*"
    r"[ \t({\[\"']*\Z|"
    r"\d[^\w\n=≈:.]{0,3}(?:\b(?:or|and|to|through|until)\b)?(?:\s+(?:maybe|perhaps|also|even))*"
    r"[ \t({\[\"']*\Z|"
    r"\d\W{1,3}but\s+(?:also|even|maybe|perhaps|possibly)\s*\Z|"
    r"\d[^\w\n]{0,3}\bor\s+[A-Za-z]\w*\s*=\s*\Z|"  # x = 1 or y = 2
    r"\b([A-Za-z]\w*)\s*=\s*[-+]?\d[\d.,/]*[^\w\n]{1,3}(?:and\s+)?\1\s*=\s*\Z|"  # x = 1, x = 2
    r"\b[A-D][).:]\s*[-+]?\d[\d./]*\W{1,3}[B-E][).:]\s*\Z",  # A) 1 B) 2
    re.IGNORECASE,
)
_OR_ELSE: Final = re.compile(r"(?<![^\s$({])([-+]?\d[\d./,%]*)[$)]?,?\s*\(?\bor\s+[${(]*\Z")
_PART_OF_WORD: Final = re.compile(r"[A-Za-z_\\.,!¬∞]\Z|\\[A-Za-z]+[\s({]*\Z")
_DENIED_AFTER: Final = re.compile(
    r"[-+*/^=±<>≤≥≠(_∞]|:(?=\S)|ish\b|[xyznkabcijepqrtuw](?![A-Za-z])|!+(?=[$)}\w])"
    rf"|[ \t{_THIN}]*(?:[+*/^±×=<>≤≥≠]|-[ \t]*(?:[\d($\\.|]|[A-Za-z](?![A-Za-z]))|\\[a-zA-Z]"
    r"|(?-i:[xyznkiπ])(?![A-Za-z])"
    r"|(?:pi|sqrt|log|ln|sin|cos|tan|mod|choose|plus|minus|times|over|factorial|squared"
    r"|cubed|\w+ths|trillion|bn|lakhs?|crores?|at (?:least|most))\b)"
    r"|\W*(?:(?:(?:is|was|are|would be|seems|looks)\s*)?"
    r"(?:n't|not|wrong|incorrect|false|impossible|too (?:small|large|big|low|high))\b"
    r"|can(?:not|'t)\b|or\s+(?:more|less|so|fewer|something|maybe|perhaps)\b"
    r"|and\s+(?:an?|one|two|three)\s+(?:half|halves|thirds?|quarters?)\b)|\?\W*no\b",
    re.IGNORECASE,
)
_DENIED_AFTER_UNIT: Final = re.compile(
    r"\W*[A-Za-z]*\W*\b(?:or\s+(?:more|less|so|fewer)|at (?:least|most)"
    r"|is\s*(?:n't|not|wrong|incorrect))\b",
    re.IGNORECASE,
)
_AROUND: Final = 256
"""Characters around a number that are looked at."""
_LEFT_OF_EQUALS: Final = re.compile(
    r"(?:^|[\n,;:]|(?<![*+/-])(?<![*+/-]\s)\$|\.\s|"
    r"\b(?:and|answer|get|have|hence|is|says?|so|that|then|therefore|thus)\s)"
    r"\s*([-+\d][^\s=≈]*)\s*\Z",
    re.IGNORECASE,
)

_WRITTEN: Final = (
    (re.compile(r"</?[A-Za-z][^<>\n]{0,80}>"), " "),  # tags
    (re.compile(r"<<[^<>\n]{0,80}>>"), " "),  # a calculation beside its result
    (re.compile(r"(?m)^\s{0,8}\d{1,2}\)[ \t]+(?=\S)"), ""),  # the number of an item
    (re.compile(r"(?<=\d)\*\*(?=\d)"), "^"),
    (
        re.compile(
            r"\*\*|__|`|\\(?:left|right|displaystyle|boxed|[lL]arge|[hH]uge)(?![A-Za-z])|\\!"
        ),
        "",
    ),
    (re.compile(r"\\\\(?![A-Za-z])|\\(?:pounds|euro)(?![A-Za-z])"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,;: ]|~"), _THIN),
    (re.compile(r"\\(?:q?quad|implies|Rightarrow|therefore)(?![A-Za-z])|[⇒→∴]|[=-]>"), " "),
    (re.compile(r"\\approx(?![A-Za-z])"), "≈"),
    (re.compile(r"\\([dtc]?frac\s*\{\s*\d+\s*\}\s*\{)\s*-\s*(?=\d)"), r"-\\\1"),
    (re.compile(r"\\(?:cdot|times)(?![A-Za-z])|[×·⋅]"), "*"),
    (re.compile(r"\\neq?(?![A-Za-z])|!="), "≠"),
    (re.compile(r"\\%|％"), "%"),
    (
        re.compile(r"\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?|\\degree(?![A-Za-z])|\\circ(?![A-Za-z])"),
        "°",
    ),
    (
        re.compile(
            r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it|sf)|boldsymbol|operatorname|mbox|underline|emph)"
            r"\s*\{([^{}]*)\}"
        ),
        r"\1",
    ),
    (re.compile(r"\\(?=[$()\[\]{}])"), ""),
    (re.compile(r"\.(\d*)\\(?:overline|bar|dot)\s*\{(\d+)\}"), r".\1(\2)~"),
    (re.compile(r"(?<![\d.,])(\d{1,9})\s*(?=\\[dtc]?frac)"), r"\1 "),
    (re.compile(r"\\[dtc]?frac\s*\{\s*([-+]?[\d,.]+)\s*\}\s*\{\s*([\d,]+)\s*\}"), r"\1/\2"),
    (re.compile(r"\\[dtc]?frac\s*\{?(\d)\}?\s*\{?(\d)\}?"), r"\1/\2"),
    (re.compile(r"(?<=\d)\s*([/^])\s*(?=[\d{(])"), r"\1"),
    (re.compile(r"(?<=\d)\s*[*x]\s*(?=10\^)"), "*"),
    (re.compile(r"((?:^|[=(:{$])\s*-)\s+(?=\d)"), r"\1"),
    (re.compile(r"(?<=\d)\s+(?=%)"), ""),
    (re.compile(r"\b(?:minus|negative)\s+(?=\d)", re.IGNORECASE), "-"),
)
_SAME: Final = str.maketrans(
    dict.fromkeys("−–—﹣－‐‑‒", "-") | dict.fromkeys("\u00a0\u202f\u2007\u2008", _THIN)
    | {"∕": "/", "／": "/", "．": ".", "，": ",", "’": "'", "\u200b": "", "\ufeff": ""}
)  # fmt: skip

_UNITS: Final = {
    name: kind
    for kind, names in {
        "mm": "mm millimeter millimetre",
        "cm": "cm centimeter centimetre",
        "m": "m meter metre",
        "km": "km kilometer kilometre",
        "in": "in inch inche",
        "ft": "ft foot feet",
        "mi": "mi mile",
        "s": "s sec second",
        "min": "min minute",
        "h": "h hr hour",
        "day": "day",
        "g": "g gram gramme",
        "kg": "kg kilogram",
        "l": "l liter litre",
        "ml": "ml milliliter milliliter millilitre",
        "$": "$ dollar usd",
        "¢": "¢ cent",
        "€": "€ euro eur",
        "£": "£ pound gbp",
        "%": "% percent pct percentage",
        "°": "° degree deg",
        "rad": "rad radian",
    }.items()
    for name in names.split()
}
"""Units that are known to differ from each other."""


_POWERS: Final = re.compile(
    rf"\b({'|'.join(filter(str.isalpha, _UNITS))}|inches|unit)(s?)\s*\^\s*\{{?([23])\}}?(?!\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number that was read."""

    value: Fraction
    digits: int = 0
    """Significant digits of a decimal fraction; 0 for what is exact."""
    unit: str = ""
    """What is known of its unit, such as `cm²`."""

    def means(self, reference: Number) -> bool:
        """Whether a strict reader takes it for the reference.

        Units may be left out, but do not contradict. A percent sign is a unit, and a hundredth.
        """
        if "%" in {self.unit, reference.unit} and _is_same(_of_one(self), _of_one(reference)):
            return True
        is_unit_right = not (self.unit and reference.unit) or self.unit == reference.unit
        return is_unit_right and _is_same(self, reference)

    def rounds(self, other: Number) -> bool:
        """Whether it is the other one, rounded or cut to its digits."""
        if self.digits < ENOUGH_DIGITS or 0 < other.digits <= self.digits or not self.value:
            return False
        place = _magnitude(self.value) - self.digits + 1
        return abs(self.value - other.value) < Fraction(10) ** place


def _of_one(number: Number) -> Number:
    return Number(number.value / 100, number.digits) if number.unit == "%" else number


def _is_same(one: Number, other: Number) -> bool:
    return one.value == other.value or one.rounds(other) or other.rounds(one)


def _magnitude(value: Fraction) -> int:
    return math.floor(math.log10(abs(value.numerator)) - math.log10(value.denominator))


def simplify(text: str) -> str:
    """Return the end of a text, its numbers in one spelling of digits, signs and LaTeX."""
    text = text[-MAX_CHARS:].translate(_SAME)
    if not text.isascii():
        text = "".join(map(_ascii, text))
    for pattern, written in _WRITTEN:
        text = pattern.sub(written, text)
    return _POWERS.sub(lambda found: found[1] + found[2] + "²³"[found[3] == "3"], text)


def read(text: str) -> Number | None:
    r"""Return the number that a text is, with a unit or without; None where it is no number.

    >>> read(r"1{,}234\text{ cm}")
    Number(value=Fraction(1234, 1), digits=0, unit='cm')
    """
    text = simplify(text).strip().strip("$ ").strip()
    found = None if text.endswith("!") else _NUMBER.match(text)  # a factorial is a task
    return _checked(text, found) if found is not None else None


def last_number(text: str, *, is_only: bool = False) -> Number | None:
    """Return the last number of a text; None where it has none that stands for itself.

    What is part of a calculation, a list, a choice or a denial does not. With `is_only`, no other
    number stands before it, and an exclamation mark is a factorial.
    """
    text = simplify(text)
    numbers = list(_NUMBER.finditer(text))
    if not numbers or (is_only and (len(numbers) > 1 or text[numbers[0].end() :].startswith("!"))):
        return None
    return _checked(text, numbers[-1])


def _checked(text: str, found: re.Match[str]) -> Number | None:
    """Return a number if it stands for itself."""
    before, after = text[max(0, found.start() - _AROUND) : found.start()], text[found.end() :]
    unit, more_of_unit = _unit(after)
    again = None
    if (either := _OR_ELSE.search(before)) is not None and (again := read(either[1])) is not None:
        before = before[: either.start()]  # 1/2, or 0.5: the same number twice
    is_denied = (
        (not unit and _DENIED_AFTER.match(after[:_AROUND]))
        or _DENIED_AFTER_UNIT.match(after[:_AROUND])
        or _PART_OF_WORD.search(before)
        or _DENIED_BEFORE.search(before)
        or re.search(r"^[KMB]\b|\d", after)
    )
    value, digits = (None, 0) if is_denied else _value(found)
    if value is None:
        return None
    scale = _SCALE.match(after)
    value *= _SCALES[scale[1].lower()] if scale is not None else 1
    number = Number(value, digits, unit + more_of_unit)
    head = before.rstrip(" $({[")
    left = _LEFT_OF_EQUALS.search(head[:-1]) if head.endswith(("=", "≈")) else None
    other = (read(left[1]) if left is not None else None) or again
    is_converted = other is not None and "" != other.unit != number.unit != ""
    is_same = other is None or is_converted or number.means(other)
    if other is not None and head.endswith("≈"):
        places = len((found["decimal"] or "").partition(".")[2])
        is_same = abs(number.value - other.value) * 10**places < 1
    return number if is_same else None


def _unit(after: str) -> tuple[str, str]:
    """Return what is known of the unit behind a number, and its power."""
    found = _UNIT.match(after)
    name = found["name"].lower() if found is not None else ""
    kind = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"), "")
    if found is None or not kind or re.match(r"\s*(?:/|per\b)", after[found.end() :]):
        return "", ""
    spelt = {"s": "²", "c": "³"}.get((found["before"] or "")[:1].lower(), "")
    return kind, found["power"] or spelt


def _value(found: re.Match[str]) -> tuple[Fraction | None, int]:
    """Return the value of a number, and the significant digits of a decimal."""
    sign = -1 if found["sign"] == "-" else 1
    if found["ten"]:
        return sign * _power(found["ten"]), 0
    if found["over"]:
        over, under = _fraction(found["over"]), _fraction(found["under"])
        return (sign * (int(found["mixed"] or 0) + over / under) if under else None), 0
    value, places = _fraction(found["decimal"]), len(found["decimal"].partition(".")[2])
    if found["repeated"]:
        cycle = Fraction(int(found["repeated"]), 10 ** len(found["repeated"]) - 1)
        return sign * (value + cycle / 10**places), 0
    value *= Fraction(10) ** int(found["e"] or 0)
    value *= _power(found["times"]) if found["times"] else 1
    digits = len(re.sub(r"\D", "", found["decimal"]).lstrip("0"))
    return sign * value, digits if places else 0


def _fraction(digits: str) -> Fraction:
    return Fraction(re.sub(f"[, {_THIN}]", "", digits).removesuffix(".") or "0")


def _power(text: str) -> Fraction:
    return Fraction(10) ** int(text.removeprefix("10^").strip("(){}"))


def _ascii(char: str) -> str:
    """Return how a character is written with ASCII, as far as numbers are made of it."""
    if char.isascii() or char == _THIN:
        return char
    if (digit := unicodedata.decimal(char, None)) is not None:
        return str(digit)
    plain = unicodedata.normalize("NFKC", char)
    if "\u2044" in plain:
        return " " + plain.replace("\u2044", "/")
    is_raised = unicodedata.decomposition(char).startswith("<super>")
    return f"^{plain}" if is_raised and plain.isdigit() else char
