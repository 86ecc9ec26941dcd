"""Who may run controllers as whom."""

from __future__ import annotations

import os
import pwd

import pytest

from plexsvc.controllers.submit import check_user
from plexsvc.errors import PlexError


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
