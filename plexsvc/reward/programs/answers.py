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
from pathlib import Path
from typing import Any, Final

from plexsvc.reward.programs import validating
from plexsvc.reward.programs.base import (
    Outcome,
    Program,
    RefusedError,
    Scored,
    Stage,
    TimedOut,
    Work,
    cut,
)
from plexsvc.reward.sandbox.base import PYTHON, Limits

_QUICK: Final = Limits(wall_us=10_000_000)
_NUMBER: Final = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def _exact(work: Work) -> Scored:
    found = _plain(work.text, work)
    references = work.reference if isinstance(work.reference, list) else [work.reference]
    if not references or not all(isinstance(one, str) for one in references):
        raise RefusedError(
            f"exact: the reference must be a text or a list of texts, not {references}"
        )
    return Scored(score=float(any(found == _plain(one, work) for one in references)))


def _plain(text: str, work: Work) -> str:
    if work.settings.get("strip", True):
        text = text.strip()
    return text.casefold() if work.settings.get("ignore_case", False) else text


def _numeric(work: Work) -> Scored:
    expected = _number_of(work.reference)
    numbers = _NUMBER.findall(work.text)
    if not numbers:
        return Scored(score=0.0, detail="the text holds no number")
    found = float(numbers[-1].replace(",", ""))
    tolerance = work.settings.get("tolerance", 1e-6)
    is_near = math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return Scored(score=float(is_near), detail=f"the last number is {found:g}")


def _number_of(reference: Any) -> float:  # noqa: ANN401 - any JSON
    try:
        number = float(str(reference).replace(",", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise RefusedError(f"numeric: the reference must be a number, not {reference!r}")
    return number


def _regex(work: Work) -> Scored:
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
    return Scored(score=float(found[1] == str(work.reference)), detail=f"group 1 is {found[1]!r}")


def _math(work: Work) -> Scored:
    if not isinstance(work.reference, str | int | float):
        raise RefusedError(f"math: the reference must be an expression, not {work.reference!r}")
    verifier: Any = _library("math", "math_verify")
    # The stage has a timeout of its own; those of math-verify are signals.
    expected = verifier.parse(_as_math(work.reference), parsing_timeout=None)
    if not expected:
        raise RefusedError(f"math: the reference {work.reference!r} is no expression that it reads")
    found = verifier.parse(work.text, parsing_timeout=None)
    is_equal = bool(found) and verifier.verify(expected, found, timeout_seconds=None)
    return Scored(score=float(is_equal), detail=f"read as {found[-1] if found else 'nothing'}")


def _as_math(reference: float | str) -> str:
    text = str(reference)
    return text if "$" in text or "\\boxed" in text else f"${text}$"


def _json_schema(work: Work) -> Outcome:
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


def _library(program: str, module: str) -> Any:  # noqa: ANN401 - the module
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _not_installed(program, str(error)) from error


def _not_installed(program: str, reason: str) -> RefusedError:
    return RefusedError(
        f"{program}: {reason}; install what requirements/base.txt lists where workers run"
    )


def _simple(name: str, text: str, run: Callable[[Work], Scored], **settings: type) -> Program:
    stages = (Stage(name="compare", run=run, limits=_QUICK),)
    return Program(name=name, text=text, stages=stages, settings=settings)


PROGRAMS: Final = (
    _simple("exact", "the text is the reference", _exact, strip=bool, ignore_case=bool),
    _simple("numeric", "the text's last number is the reference", _numeric, tolerance=float),
    _simple("regex", "the pattern is found in the text", _regex, pattern=str),
    replace(
        _simple("math", "the text's last expression equals the reference", _math),
        imports=("math_verify",),
    ),
    Program(
        name="json_schema",
        text="the text is JSON of the schema",
        stages=(Stage(name="compare", run=_json_schema, limits=_QUICK, is_sandboxed=True),),
        settings={"schema": dict},
    ),
)
