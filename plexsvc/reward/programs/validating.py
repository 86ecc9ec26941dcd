"""Script that compares JSON with a schema: `validating.py PACKAGES`, inside a sandbox.

The schema becomes Python code, its patterns may take for ever, and both may be made to do harm: so
not even a tenant's own schema is used outside. Standard input has `schema` and `text`; the verdict
is one line of JSON. The script imports nothing of this package, because it is copied.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

UNKNOWN = {
    *("$dynamicRef", "$recursiveRef", "dependentRequired", "dependentSchemas", "maxContains"),
    *("minContains", "prefixItems", "unevaluatedItems", "unevaluatedProperties"),
}
"""Keywords that `fastjsonschema` does not know."""
NAMED = {"$defs", "definitions", "dependencies", "patternProperties", "properties"}
"""Keywords whose objects have names of the schema's own."""
VALUES = {"const", "default", "enum", "examples"}


class NowhereElse(dict[str, Callable[[str], NoReturn]]):
    """Refuses references to other documents."""

    def __contains__(self, scheme: object) -> bool:
        """Be asked for every scheme."""
        return True

    def __missing__(self, scheme: str) -> Callable[[str], NoReturn]:
        """Return what is called with the URI."""
        return _refuse_elsewhere


def _refuse_elsewhere(uri: str) -> NoReturn:
    raise LookupError(f"the schema refers to {uri[:256]!r}, which is not in it; give it whole")


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _number(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits[:32]} is more than a number with a fraction or exponent can be")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object names a key twice, so that it says two things")
    return found


def _unknown_keywords(schema: Any) -> Iterator[str]:
    """Yield keywords of a schema that would be passed over in silence."""
    if isinstance(schema, list):
        for one in schema:
            yield from _unknown_keywords(one)
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in UNKNOWN or (key == "$schema" and "2020-12" in str(value)):
            yield key
        elif key in NAMED and isinstance(value, dict):
            for one in value.values():
                yield from _unknown_keywords(one)
        elif key not in VALUES:
            yield from _unknown_keywords(value)


def main(packages: str) -> dict[str, Any]:
    """Return `score` and `detail`, or why the schema is `refused`."""
    sys.set_int_max_str_digits(0)  # a number may have any length; the stage has a limit
    asked = json.load(sys.stdin)
    sys.path.append(packages)
    import fastjsonschema

    compiled = re.compile  # digits and words of a schema's patterns are those of ASCII
    re.compile = lambda pattern, flags=0: compiled(pattern, flags | re.ASCII)
    try:
        unknown = next(_unknown_keywords(asked["schema"]), "")
        if unknown:
            return {"refused": f"the schema has {unknown!r}, which is not compared here"}
        validate = fastjsonschema.compile(
            asked["schema"], handlers=NowhereElse(), use_default=False
        )
    except LookupError as error:
        return {"refused": str(error.args[0])}
    except (ValueError, TypeError, AttributeError, RecursionError, re.error) as error:
        return {"refused": f"the schema is none: {error}"}
    try:
        validate(
            json.loads(
                asked["text"],
                parse_float=_number,
                parse_constant=_no_json,
                object_pairs_hook=_object,
            )
        )
    except (ValueError, RecursionError, OverflowError) as error:  # no JSON, or not the schema's
        return {"score": 0.0, "detail": str(error)[:1024]}
    return {"score": 1.0, "detail": ""}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])))
