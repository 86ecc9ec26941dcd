"""Programs that compare an answer with a reference and run nothing that a model wrote.

A schema runs, as code that is made of it, so that one is compared in a sandbox.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from plexsvc.reward.programs import validating
from plexsvc.reward.programs.base import (
    Outcome,
    Program,
    ProgramStage,
    RefusedError,
    Scored,
    StageRun,
    TimedOut,
    cut,
)
from plexsvc.reward.programs.numerals import Number, last_number, read
from plexsvc.reward.sandbox.base import PYTHON, StageLimits

_QUICK: Final = StageLimits(wall_us=10_000_000)


def _exact(work: StageRun) -> Scored:
    found = _plain(work.text, work)
    references = work.reference if isinstance(work.reference, list) else [work.reference]
    if not references or not all(isinstance(one, str) for one in references):
        raise RefusedError(
            f"exact: the reference must be a text or a list of texts, not {references}"
        )
    return Scored(score=float(any(found == _plain(one, work) for one in references)))


def _plain(text: str, work: StageRun) -> str:
    if work.settings.get("strip", True):
        text = text.strip()
    return text.casefold() if work.settings.get("ignore_case", False) else text


def _numeric(work: StageRun) -> Scored:
    expected, *as_printed = _numbers_of(work.reference)
    found = last_number(work.text)
    if found is None:
        is_there = any(map(str.isdigit, work.text))
        found_text = "no number that stands for itself at its end" if is_there else "no number"
        return Scored(score=0.0, detail=f"the text holds {found_text}")
    tolerance = work.settings.get("tolerance")
    if tolerance is None:
        is_right = any(found.means(one) for one in (expected, *as_printed))
    elif not 0 <= tolerance < math.inf:
        raise RefusedError(f"numeric: the tolerance must be 0 or more, not {tolerance}")
    else:
        largest: Fraction = max(Fraction(1), abs(expected.value), abs(found.value))
        most = Fraction(tolerance) * largest
        is_right = abs(found.value - expected.value) <= most
    return Scored(score=float(is_right), detail=f"the last number is {_shown(found)}")


def _numbers_of(reference: Any) -> list[Number]:
    """Return what a reference means: of a float 15 digits, which somebody wrote, or all."""
    is_number = isinstance(reference, str | int | float) and not isinstance(reference, bool)
    texts = [f"{reference:.15g}"] if isinstance(reference, float) else []
    numbers = [read(text) for text in (*texts, str(reference)) if is_number]
    if not numbers or None in numbers:
        raise RefusedError(
            f"numeric: the reference must be a number, not {cut(repr(reference), 256)}"
        )
    return [number for number in numbers if number is not None]


def _shown(number: Number) -> str:
    value = number.value
    try:
        return f"{float(value):g}"
    except OverflowError:
        return f"one of {len(str(value.numerator))} digits"


def _regex(work: StageRun) -> Scored:
    """Score 1 where the pattern is found and, with a reference, its group 1 is the reference."""
    pattern = work.settings.get("pattern", work.reference)
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise RefusedError(f"regex: the pattern {pattern!r} is none: {error}") from error
    found = compiled.search(work.text)
    if found is None or work.reference is None or "pattern" not in work.settings:
        return Scored(score=float(found is not None))
    if not compiled.groups:
        raise RefusedError(f"regex: {pattern!r} has no group to compare with the reference")
    if not isinstance(work.reference, str | int | float) or isinstance(work.reference, bool):
        raise RefusedError(
            f"regex: the reference must be a text or a number, not {work.reference!r}"
        )
    return Scored(score=float(found[1] == str(work.reference)), detail=f"group 1 is {found[1]!r}")


def _math(work: StageRun) -> Scored:
    reference = work.reference
    if not isinstance(reference, str | int | float) or isinstance(reference, bool):
        raise RefusedError(f"math: the reference must be an expression, not {reference!r}")
    mathematics = _library("math", "plexsvc.reward.programs.mathematics")
    try:
        return Scored(score=float(mathematics.is_right(work.text, str(reference))))
    except mathematics.NoExpressionError:
        raise RefusedError(
            f"math: the reference {reference!r} is no expression that it reads"
        ) from None


def _json_schema(work: StageRun) -> Outcome:
    found = importlib.util.find_spec("fastjsonschema")
    if found is None or found.origin is None:
        raise _not_installed("json_schema", "there is no fastjsonschema")
    schema = work.settings.get("schema", work.reference)
    ran = work.sandbox.run(
        (*PYTHON, "validating.py", str(Path(found.origin).parents[1])),
        files={"validating.py": Path(validating.__file__).read_bytes()},
        stdin=json.dumps({"schema": schema, "text": work.text}).encode(),
        limits=work.limits,
    )
    if ran.hit:
        return TimedOut(detail=f"the schema exceeded its limit of {ran.hit}")
    try:
        verdict = json.loads(ran.stdout)
    except ValueError:
        raise RefusedError(f"json_schema: the schema is none: {cut(ran.stderr, 512)}") from None
    if "refused" in verdict:
        raise RefusedError(f"json_schema: {verdict['refused']}")
    return Scored(score=float(verdict["score"]), detail=str(verdict["detail"]))


def _library(program: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _not_installed(program, str(error)) from error


def _not_installed(program: str, reason: str) -> RefusedError:
    return RefusedError(
        f"{program}: {reason}; install what requirements/base.txt lists where workers run"
    )


def _simple(name: str, text: str, run: Callable[[StageRun], Scored], **settings: type) -> Program:
    stages = (ProgramStage(name="compare", run=run, limits=_QUICK),)
    return Program(name=name, text=text, stages=stages, settings=settings)


PROGRAMS: Final = (
    _simple("exact", "the text is the reference", _exact, strip=bool, ignore_case=bool),
    _simple("numeric", "the text's last number is the reference", _numeric, tolerance=float),
    _simple("regex", "the pattern is found in the text", _regex, pattern=str),
    replace(
        _simple("math", "the text's last expression equals the reference", _math),
        imports=("plexsvc.reward.programs.mathematics",),
    ),
    Program(
        name="json_schema",
        text="the text is JSON of the schema",
        stages=(ProgramStage(name="compare", run=_json_schema, limits=_QUICK, is_sandboxed=True),),
        settings={"schema": dict},
    ),
)
