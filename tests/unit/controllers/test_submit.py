"""Who may run controllers as whom, and what is read of their logs."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from plexsvc.controllers.submit import LOG, SUPERVISOR, check_user, read_log
from plexsvc.errors import PlexError
from plexsvc.node import logs


def test_controllers_run_as_the_user_that_the_cluster_names_or_not_at_all() -> None:
    check_user("")
    check_user(pwd.getpwuid(os.geteuid()).pw_name)
    with pytest.raises(PlexError, match="no such user") as refused:
        check_user("nobody-of-this-name")
    assert refused.value.code == "bad_request"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_user_who_may_not_become_another_is_refused() -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(PlexError, match="submit as root") as refused:
            check_user("root")
    finally:
        os.seteuid(0)
    assert refused.value.code == "forbidden"


def test_whoever_follows_a_log_reads_on_when_it_was_emptied(tmp_path: Path) -> None:
    log = tmp_path / LOG
    log.write_bytes(b"first\n")
    (tmp_path / SUPERVISOR).write_text(str(os.getpid()))
    following = read_log(tmp_path, follow=True)
    assert next(following) == b"first\n"
    logs.cut(tmp_path, max_bytes=1)
    with log.open("ab") as writer:
        writer.write(b"2\n")
    assert next(following) == b"2\n"
    assert b"".join(read_log(tmp_path, follow=False)) == b"first\n2\n"
