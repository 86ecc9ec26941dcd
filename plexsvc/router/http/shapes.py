"""Shape that an answer must have: `response_format`, `structured_outputs`, calls that must come.

The deployment compiles it to a grammar, and refuses what it cannot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from plexsvc.errors import bad_request
from plexsvc.router.http.fields import bad

MAX_CHARS: Final = 16 << 10
"""Of a grammar, as JSON."""
MAX_TOOLS: Final = 128
KINDS: Final = ("json", "json_object", "regex", "choice", "grammar")
DEFINITIONS: Final = ("$defs", "definitions")
Kinds = Mapping[str, tuple[type, ...]]
TOOL: Final[Kinds] = {
    "description": (str,),
    "name": (str,),
    "parameters": (dict,),
    "strict": (bool,),
}
FORMAT: Final[Kinds] = {
    "description": (str,),
    "name": (str,),
    "schema": (dict,),
    "strict": (bool,),
}
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def structured_of(asked: Mapping[str, Any]) -> str:
    """Return what the texts of a request must match, as a deployment reads it; or nothing.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    found = {
        "response_format": _of_format(asked.get("response_format")),
        "structured_outputs": _of_structured(asked.get("structured_outputs")),
        "tool_choice": _of_tools(asked),
    }
    shaped = given(found)
    if len(shaped) > 1:
        names = " and ".join(shaped)
        raise bad_request(f"{names}: an answer can match one of them", field=min(shaped))
    return "".join(dumped(name, one) for name, one in shaped.items())


def given(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an object gives: one that is null is not given."""
    return {name: value for name, value in asked.items() if value is not None}


def dumped(name: str, value: object) -> str:
    """Return JSON of bounded size and depth.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    try:
        text = json.dumps(value)
    except RecursionError:
        raise bad_request(f"{name}: it is nested too deeply", field=name) from None
    if len(text) > MAX_CHARS:
        problem = f"{name}: it has {len(text)} characters as JSON; it may have {MAX_CHARS}"
        raise bad_request(problem, field=name)
    return text


def check_object(name: str, found: object, kinds: Kinds) -> None:
    """Refuse what is no object, or has other fields, or fields of other types.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    if not isinstance(found, Mapping):
        raise bad(name, found, f"an object of {', '.join(kinds)}")
    for key, value in found.items():
        if key not in kinds:
            raise bad(f"{name}.{key}", value, f"left out: known are {', '.join(kinds)}")
        if type(value) not in kinds[key]:
            wanted = " or ".join(_CALLED[kind] for kind in kinds[key])
            raise bad(f"{name}.{key}", value, wanted)


_CALLED: Final = {
    str: "a text",
    list: "a list",
    dict: "an object",
    bool: "true or false",
    int: "a whole number",
}


def forced_tool(asked: Mapping[str, Any]) -> str:
    """Return the tool that an answer must be a call of, by its name; or nothing."""
    choice = asked.get("tool_choice")
    return str(choice["function"]["name"]) if isinstance(choice, dict) else ""


def tools_of(asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parameters of the tools that a chat may call, by name.

    Raises:
        PlexError: `bad_request`, naming the field.
    """
    tools, choice = asked.get("tools", []), asked.get("tool_choice", "auto")
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise bad("tools", tools, f"a list of up to {MAX_TOOLS} tools")
    found: dict[str, dict[str, Any]] = {}
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool != {"type": "function", "function": function}:
            raise bad("tools", tool, 'objects with "type": "function" and a function, only')
        check_object("tools", given(function), TOOL)
        if function.get("strict") and choice == "auto":
            wanted = 'false unless tool_choice is "required" or names a function'
            raise bad("tools.strict", function["strict"], wanted)
        name, parameters = function.get("name"), function.get("parameters") or {}
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in found:
            wanted = "functions of different names of up to 64 letters, digits, _ and -"
            raise bad("tools", name, wanted)
        inner = parameters if isinstance(parameters, dict) else {}
        is_schema = all(isinstance(inner.get(key, {}), dict) for key in DEFINITIONS)
        if not isinstance(parameters, dict) or not is_schema:
            raise bad("tools", parameters, "functions whose parameters are a JSON schema")
        found[name] = parameters
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        is_only = choice == {"type": "function", "function": {"name": name}}
        if not is_only or not isinstance(name, str) or name not in found:
            raise bad("tool_choice", choice, "a function that is among the tools")
    elif choice not in ("none", "auto", "required") or (choice == "required" and not found):
        raise bad("tool_choice", choice, '"auto", "none", "required" beside tools, or one of them')
    return {} if choice == "none" else found


def _of_format(found: Any) -> dict[str, Any] | None:
    name = "response_format"
    if found is None or found == {"type": "text"}:
        return None
    if found == {"type": "json_object"}:
        return {"json_object": True}
    inner = found.get("json_schema") if isinstance(found, dict) else None
    if (
        not isinstance(inner, dict)
        or found != {"type": "json_schema", "json_schema": inner}
        or not isinstance(inner.get("schema"), dict)
    ):
        wanted = "of type text, json_object, or json_schema, with a json_schema that has a schema"
        raise bad(name, found, wanted)
    check_object(name, given(inner), FORMAT)
    return {"json": inner["schema"]}


def _of_structured(found: Any) -> dict[str, Any] | None:
    name = "structured_outputs"
    if found is None:
        return None
    held = given(found) if isinstance(found, dict) else {}
    if len(held) != 1 or not held.keys() <= set(KINDS):
        raise bad(name, found, f"an object with one of {', '.join(KINDS)}")
    if isinstance(held.get("json"), str):
        try:
            held = {"json": json.loads(held["json"])}
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{name}: json is none: {error}", field=name) from error
    return held


def _of_tools(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    tools, choice = tools_of(asked), asked.get("tool_choice")
    if isinstance(choice, dict):
        return {"json": {"type": "object"} | tools[forced_tool(asked)]}
    if choice != "required":
        return None
    shared: dict[str, Any] = {}
    for parameters in tools.values():  # references are from the root
        for key in DEFINITIONS:
            for name, one in parameters.get(key, {}).items():
                if shared.setdefault(key, {}).setdefault(name, one) != one:
                    raise bad("tools", name, "without two definitions of one name")
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "parameters": {"type": "object"}
                | {key: value for key, value in parameters.items() if key not in DEFINITIONS},
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, parameters in tools.items()
    ]
    return {"json": shared | {"type": "array", "minItems": 1, "items": {"anyOf": calls}}}
