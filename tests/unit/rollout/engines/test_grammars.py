"""Grammars that tenants send: what is one, and what is compiled apart before it is used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plexsvc.rollout.engines import grammars

PIECES = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(20, 40)]
HARD = {"allOf": PIECES}
"""It would take hours."""


@pytest.mark.parametrize(
    "structured",
    [
        {"json_object": True},
        {"json": {"type": "array", "items": {"type": "integer"}}},
        {"regex": "[a-z]+"},
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "a" start | "b"'},
    ],
)
def test_a_grammar_of_each_kind_is_compiled(structured: dict[str, Any]) -> None:
    assert grammars.problem(json.dumps(structured)) == ""


@pytest.mark.parametrize(
    ("structured", "words"),
    [
        ("{", "Expecting"),
        ("[" * 100_000, "nested"),
        ("[]", "one of json"),
        ('{"xml": "a"}', "one of json"),
        ('{"regex": "a", "json": {}}', "one of json"),
        ('{"json_object": false}', "json_object cannot be False"),
        ('{"choice": [""]}', "choice cannot be"),
        ('{"regex": 3}', "regex cannot be 3"),
        ('{"json": [1]}', "json cannot be"),
        (json.dumps({"json": {"a": json.loads("[" * 40 + "]" * 40)}}), "deeper than 32"),
        ('{"regex": "("}', "regex"),
        ('{"json": {"$ref": "http://127.0.0.1/x"}}', "retrieving"),
        pytest.param(json.dumps({"json": HARD}), "2 s of processor", marks=pytest.mark.slow),
    ],
)
def test_what_is_no_grammar_or_takes_too_long_is_told(structured: str, words: str) -> None:
    assert words in grammars.problem(structured)
