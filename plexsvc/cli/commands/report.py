"""`plexctl report`: device time and waits of tenants and jobs."""

from __future__ import annotations

from plexsvc.cli.options import Address, Json, StateDir, Token, calls_to, print_message, show


def report(
    state_dir: StateDir = None,
    address: Address = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Show each tenant's device time and waits, by whom, and each job's slowdown.

    Operators see every tenant by name; others see their own jobs, and the rest as one.
    """
    from plexclient.wire.v1 import service_pb2

    with calls_to(state_dir, address=address, token=token) as calls:
        reply = calls.call("GetReport", service_pb2.ReportRequest(), service_pb2.ReportReply)
    if json:
        print_message(reply)
        return
    from plexsvc.show.report import report_view

    show(report_view(reply))
