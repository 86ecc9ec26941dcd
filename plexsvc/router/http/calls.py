"""Calls of tools in the text of an answer, found while it comes.

Models write them in two ways: Qwen's and Hermes' between tags, Llama's as an answer that is nothing
but JSON. What reads like neither, or calls what was not offered, is text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
PYTHON: Final = "<|python_tag|>"


@dataclass(slots=True)
class Calls:
    """Reads one answer: its content and its calls so far, both of which only grow."""

    names: Collection[str]
    """Tools that were offered."""
    is_forced: bool = False
    """Whether the answer is nothing but calls."""
    named: str = ""
    """The one whose arguments are the answer."""
    content: str = ""
    made: list[dict[str, Any]] = field(default_factory=list)
    _at: int = 0
    _is_after_call: bool = False

    def read(self, text: str, *, is_last: bool) -> None:
        """Read the text so far."""
        start = text[: len(PYTHON) + 80].lstrip()
        is_json = self.is_forced or start.startswith(("{", PYTHON))
        if is_json or (not is_last and PYTHON.startswith(start)):
            if is_last:
                self._read_whole(text)
            return
        while self._at < len(text):
            start_at = text.find(OPEN, self._at)
            if start_at < 0:
                held = 0 if is_last else _held(text)
                self._say(text, len(text) - held)
                return
            self._say(text, start_at)
            close_at = text.find(CLOSE, start_at)
            if close_at < 0 and not is_last:
                return
            end = len(text) if close_at < 0 else close_at + len(CLOSE)
            body = text[start_at + len(OPEN) : end].removesuffix(CLOSE)
            call = self._call(_json(body))
            if call is None:
                self._say(text, end)
            else:
                self.made.append(call)
                self._is_after_call = True
            self._at = end

    def _say(self, text: str, end: int) -> None:
        new = text[self._at : end]
        if self._is_after_call:  # what parts two calls is no content
            new = new.lstrip()
        self._is_after_call &= not new
        self.content += new
        self._at = max(self._at, end)

    def _read_whole(self, text: str) -> None:
        found: list[Any]
        if self.named:
            found = [{"name": self.named, "arguments": _json(text)}]
        elif self.is_forced:
            listed = _json(text)
            found = listed if isinstance(listed, list) else [None]
        else:
            found = list(_objects(text.strip().removeprefix(PYTHON)))
        calls = [self._call(one) for one in found]
        made = [call for call in calls if call is not None]
        if made and len(made) == len(calls):
            self.made = made
        else:
            self.content = text

    def _call(self, found: Any) -> dict[str, Any] | None:
        """Return a call in OpenAI's form, None if it is none of a tool that was offered."""
        if not isinstance(found, dict):
            return None
        name, given = found.get("name"), found.get("arguments", found.get("parameters"))
        if not isinstance(name, str) or name not in self.names or not isinstance(given, dict):
            return None
        function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _held(text: str) -> int:
    """Return how much of a text's end may become a tag."""
    longest = min(len(OPEN) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if OPEN.startswith(text[-n:])), 0)


def _objects(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text, which semicolons may part; None for anything else."""
    decoder, at = json.JSONDecoder(parse_constant=_refuse), 0
    while at < len(text):
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield found
        while at < len(text) and text[at] in "; \n\r\t":
            at += 1


def _json(text: str) -> Any:
    found = list(_objects(text.strip()))
    return found[0] if len(found) == 1 else None


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no number")
