"""Tokenizer of a deployment: fetched from the service, read by the package `tokenizers`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from plexclient import checks
from plexclient.errors import bad_request
from plexclient.payloads import fetch
from plexclient.session import Session
from plexclient.wire.v1 import service_pb2

TOKENIZER_FILE: Final = "tokenizer.json"


class Tokenizer:
    """Text to token ids and back, exactly as the model's own tokenizer.json says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backend = _read(path)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of `text`, with those the model puts around it if asked.

        Without them a Llama 3 or Gemma prompt lacks the BOS token that these models were trained
        with. `generate` and `Batch.from_texts` do not add it either, since a chat template's text
        has it already: pass ids of `encode(prompt, add_special_tokens=True)` to `generate`.
        """
        sent = checks.text("a text", text)
        return list(self.backend.encode(sent, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`."""
        text: str = self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    @property
    def vocab_size(self) -> int:
        """Return how many tokens it knows."""
        return int(self.backend.get_vocab_size())


async def fetch_model_file(
    session: Session, *, deployment_id: str, name: str, directory: Path
) -> Path:
    """Return the path of a file of the deployment's model, fetched once into `directory`.

    Raises:
        PlexError: `not_found` when the model has no such file.
    """
    folder = hashlib.sha256(deployment_id.encode()).hexdigest()[:16]
    path = directory / folder / name
    if not path.exists():
        data = await fetch(
            session.link,
            "FetchModelFile",
            service_pb2.FetchModelFileRequest(
                deployment_id=deployment_id, job_id=session.job_id, name=name
            ),
            retry=session.retry(f"file {name} of {deployment_id}"),
            timeout_s=session.options.attempt_timeout_s,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_bytes(data)
        partial.replace(path)
    return path


def _read(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise bad_request(
            "texts need the tokenizers package: pip install 'plexclient[tokenizer]', or pass token "
            "ids"
        ) from error
    return tokenizers.Tokenizer.from_file(str(path))
