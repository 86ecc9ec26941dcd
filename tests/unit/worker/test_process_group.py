"""The network interface that has a host's address."""

from __future__ import annotations

import pytest

from plexsvc.worker.process_group import _interface_of


@pytest.mark.parametrize(
    ("host", "interface"),
    [("", "lo"), ("127.0.0.1", "lo"), ("192.0.2.1", None), ("[::1]", "lo"), ("2001:db8::1", None)],
)
def test_an_address_is_found_on_its_interface(host: str, interface: str | None) -> None:
    assert _interface_of(host) == interface
