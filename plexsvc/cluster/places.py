"""Files of a user's cluster: state directory, address card, job logs."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from plexsvc.errors import PlexError, bad_request, not_found, unavailable

STATE_DIR_VARIABLE: Final = "PLEX_STATE_DIR"
ADDRESS_VARIABLE: Final = "PLEX_ADDRESS"
TOKEN_VARIABLE: Final = "PLEX_TOKEN"
JOB_VARIABLE: Final = "PLEX_JOB"
CA_VARIABLE: Final = "PLEX_CA"
RESTARTS_VARIABLE: Final = "PLEX_RESTARTS"
_CARD: Final = "cluster.json"
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """How to reach a running cluster: what `<state_dir>/cluster.json` holds, for its owner only."""

    address: str
    token: str
    pid: int = 0
    http: str = ""
    """Where clients that speak HTTP reach it; empty: nowhere."""
    scheduler: str = ""
    """Where routers apart reach the scheduler; empty when none may."""
    ca: str = ""
    """PEM file of the certificates by which the router is known; empty: it speaks in clear."""
    controller_user: str = ""
    """User as which controllers run; empty: whoever submits them."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of packages that every node has to have, too."""
    roots: list[str] = field(default_factory=list)
    """Directories of models that every node has to have, too."""


def default_state_dir() -> Path:
    """Return `$PLEX_STATE_DIR`, or `~/.local/state/plexsvc`."""
    named = os.environ.get(STATE_DIR_VARIABLE)
    return Path(named) if named else Path.home() / ".local" / "state" / "plexsvc"


def write_card(state_dir: Path, card: Card) -> None:
    """Publish `card` in one step, readable by the owner alone."""
    unfinished = state_dir / f".{_CARD}"
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(card), file)
    unfinished.replace(state_dir / _CARD)


def make_state_dir(state_dir: Path) -> None:
    """Make the state directory unless it is there, and make it private to its owner.

    Raises:
        PlexError: `bad_request` when it cannot be one.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_dir.chmod(0o700)  # it may have been made by somebody with a wider umask
    except OSError as error:
        raise bad_request(
            f"cannot keep state in {state_dir}: {error}; give a writable --state-dir"
        ) from error


def keys_file(state_dir: Path) -> Path:
    """Return where the cluster's keys are, for its owner and for agents of further hosts."""
    return state_dir / "keys.json"


def remove_card(state_dir: Path) -> None:
    """Take the card away; safe to repeat."""
    (state_dir / _CARD).unlink(missing_ok=True)


def read_card(state_dir: Path) -> Card | None:
    """Return the card in `state_dir`, or None when no cluster has left one.

    Raises:
        PlexError: `bad_request` for a file that is no card.
    """
    path = state_dir / _CARD
    try:
        return Card(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise bad_request(
            f"{path} is no cluster's card: {error}; remove it, and start the cluster again"
        ) from error


def find_cluster(state_dir: Path, *, address: str | None, token: str | None) -> Card:
    """Return how to reach the cluster: `address` and `token` where given, else the card.

    The card's token goes to the card's address alone.

    Raises:
        PlexError: `not_found` when neither says where it is, `unavailable` while that may pass;
            `bad_request` for an address that is not the card's without a token.
    """
    card = read_card(state_dir)
    if address is not None and (card is None or address != card.address):
        if not token:
            raise bad_request(
                f"no token for {address}: the one in {state_dir} is for another address and is "
                f"not sent there; give --token or set {TOKEN_VARIABLE}"
            )
        return Card(address=address, token=token, ca=os.environ.get(CA_VARIABLE, ""))
    if card is None:
        if (pid := holder(state_dir)) is not None:
            raise unavailable(
                f"the cluster in {state_dir} (pid {pid}) is coming up or going down; ask again"
            )
        raise not_found(
            f"no cluster runs in {state_dir}: there is no {_CARD}; start one with `plexctl up`, or "
            "name another with --state-dir or --address"
        )
    return replace(card, token=token or card.token)


@contextmanager
def held(state_dir: Path, *, database: Path | None = None) -> Iterator[None]:
    """Hold the state directory for this process's cluster, or with `database` that file alone.

    Raises:
        PlexError: `unavailable` when another one holds it, or no file can be made there.
    """
    lock = state_dir / _LOCK if database is None else database.with_name(f"{database.name}.lock")
    try:
        file = lock.open("a")
    except OSError as error:
        raise unavailable(f"cannot hold {lock}: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if database is None:
                raise runs_already(state_dir) from error
            raise unavailable(
                f"another service uses the database {database} (pid {lock.read_text()}); stop it, "
                "or name another `database`"
            ) from error
        # Only now: opened by another, the file still tells whose it is.
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(state_dir: Path) -> int | None:
    """Return the process whose cluster holds the state directory, or None when none does."""
    try:
        with (state_dir / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int((state_dir / _LOCK).read_text() or 0)
    except FileNotFoundError:
        return None
    return None


def runs_already(state_dir: Path) -> PlexError:
    """Return why no second cluster starts there."""
    return unavailable(
        f"a cluster runs in {state_dir} already (pid {holder(state_dir)}); stop it with "
        "`plexctl down`, or give this one another --state-dir"
    )


def job_dir(state_dir: Path, job_id: str) -> Path:
    """Return where a submitted job's log and end are kept.

    Raises:
        PlexError: `bad_request` for an id that is not one plain name.
    """
    if not job_id or job_id in {".", ".."} or "/" in job_id:
        raise bad_request(f"{job_id!r} is not a job id; `plexctl job list` shows them")
    return state_dir / "jobs" / job_id


def is_running(pid: int) -> bool:
    """Whether process `pid` exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"
