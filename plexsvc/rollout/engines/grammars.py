"""Grammars of texts: what an answer must match, checked before an engine compiles it.

They come from tenants, and some take hours to compile. Each is compiled first in a process of its
own, with little time and memory; stepping through one is bounded by the compiler itself.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import lru_cache
from typing import Any, Final

CPU_S: Final = 2
"""Processor time that a grammar may take, the start of the process included."""
WALL_S: Final = 30.0
MEMORY_BYTES: Final = 1 << 30
KINDS: Final = ("json", "json_object", "regex", "choice", "grammar")
MAX_DEPTH: Final = 32
_MAX_TEXT: Final = 300


def parse(structured: str) -> tuple[str, Any]:
    """Return the kind of a grammar and what it holds.

    Raises:
        ValueError: it is none.
    """
    try:
        asked = json.loads(structured)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(asked, dict) or len(asked) != 1 or not asked.keys() <= set(KINDS):
        raise ValueError(f"it must have one of {', '.join(KINDS)}")
    ((kind, value),) = asked.items()
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    is_texts = kind == "choice" and isinstance(value, list) and value
    if kind == "json":
        is_right = isinstance(value, dict)
    elif kind == "json_object":
        is_right = value is True
    elif kind == "choice":
        is_right = bool(is_texts) and all(isinstance(one, str) and one for one in value)
    else:
        is_right = isinstance(value, str) and bool(value)
    if not is_right:
        raise ValueError(f"{kind} cannot be {value!r:.80}")
    return kind, value


def is_deeper(value: object, most: int) -> bool:
    """Return whether JSON nests deeper than `most`; its depth is no matter."""
    level = [value]
    for _ in range(most + 1):
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [x for one in inner for x in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)


@lru_cache(maxsize=256)
def problem(structured: str) -> str:
    """Return why a grammar cannot be used, or nothing. Takes a process, once for each."""
    try:
        parse(structured)
    except ValueError as error:
        return str(error)
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=structured.encode(),
            capture_output=True,
            timeout=WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it was not compiled in {WALL_S:g} s"
    if done.returncode:
        return f"it takes more than {CPU_S} s of processor or {MEMORY_BYTES >> 20} MiB to compile"
    return done.stdout.decode()


def _compile(structured: str) -> str:
    """Return what the compiler has against a grammar."""
    import llguidance

    kind, value = parse(structured)
    from_schema: Any = llguidance.LLMatcher.grammar_from_json_schema
    from_kind: Any = llguidance.grammar_from
    try:
        if kind in {"json", "json_object"}:
            schema = value if kind == "json" else {"type": "object"}
            made = from_schema(schema, defaults={"whitespace_flexible": True})
        else:
            made = from_kind(kind, json.dumps(value) if kind == "choice" else value)
    except (ValueError, TypeError) as error:
        return str(error)[:_MAX_TEXT]
    if found := llguidance.LLMatcher.validate_grammar(made):
        return found[:_MAX_TEXT]
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), made)
    matcher.compute_bitmask()
    return matcher.get_error()[:_MAX_TEXT]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.write(_compile(sys.stdin.read()))
