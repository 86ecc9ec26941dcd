"""`plexctl report`: device time and waits of tenants and jobs."""

from __future__ import annotations

from plexsvc.cli.app import At


def report(at: At) -> None:
    """Show each tenant's device time and waits, by whom, and each job's slowdown.

    Operators see every tenant by name; others see their own jobs, and the rest as one.
    """
    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.report import report_view

    with at.router() as router:
        reply = router.GetReport(service_pb2.ReportRequest())
    at.show(reply, report_view(reply))
