"""The sandbox of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plexsvc.errors import PlexError, unavailable
from plexsvc.reward.sandbox.base import Ran, Sandbox, StageLimits
from plexsvc.reward.sandbox.namespaces import NamespaceSandbox

MAX_TRIES: Final = 3


class NoSandbox:
    """Where nothing isolates: it runs nothing."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def describe(self) -> str:
        """Return why nothing isolates, and what to install."""
        return self._reason

    def is_available(self) -> bool:
        """Return False."""
        return False

    def run(self, argv: Sequence[str], **_: object) -> Ran:
        """Refuse.

        Raises:
            PlexError: `unavailable`.
        """
        raise unavailable(f"{argv[0]} was not run: {self._reason}")

    def close(self) -> None:
        """Do nothing."""


def open_sandbox(*, is_known_to_work: bool = False) -> Sandbox:
    """Return what isolates untrusted code on this machine, or what refuses it.

    It is tried with a command that does nothing, unless others run already, and again if that
    fails: where something killed it, a worker would refuse all code for the rest of its life.
    """
    failure: Exception | None = None
    for _ in range(MAX_TRIES):
        try:
            sandbox = NamespaceSandbox()
            if not is_known_to_work:
                sandbox.run(["/bin/true"], files={}, limits=StageLimits(wall_us=10_000_000))
        except ImportError as error:
            return NoSandbox(
                f"no sandbox: {error}; install pyseccomp (requirements/base.txt) and the system's "
                "libseccomp2"
            )
        except (PlexError, OSError) as error:
            failure = error
        else:
            return sandbox
    return NoSandbox(
        f"no sandbox: {failure}; run the service as root, or allow unprivileged user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1, or an AppArmor profile with userns)"
    )
