"""Script that compares JSON with a schema: `validating.py PACKAGES`, inside a sandbox.

The schema becomes Python code, its patterns may take for ever, and both may be made to do harm: so
not even a tenant's own schema is used outside. Standard input has `schema` and `text`; the verdict
is one line of JSON. The script imports nothing of this package, because it is copied.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn


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


def main(packages: str) -> dict[str, Any]:
    """Return `score` and `detail`, or why the schema is `refused`."""
    asked = json.load(sys.stdin)
    sys.path.append(packages)
    import fastjsonschema  # noqa: PLC0415 - found there

    try:
        validate = fastjsonschema.compile(asked["schema"], handlers=NowhereElse())
    except LookupError as error:
        return {"refused": str(error.args[0])}
    except (ValueError, TypeError, AttributeError, RecursionError, re.error) as error:
        return {"refused": f"the schema is none: {error}"}
    try:
        validate(json.loads(asked["text"]))
    except (ValueError, RecursionError) as error:  # neither JSON nor what the schema says
        return {"score": 0.0, "detail": str(error)[:1024]}
    return {"score": 1.0, "detail": ""}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])))
