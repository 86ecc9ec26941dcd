"""`plexctl tenant`: weights, shares and queues of tenants."""

from __future__ import annotations

from plexsvc.cli.app import At


def tenant(at: At) -> None:
    """Show each tenant's weight, the part of the cluster it has now, and what it waits for.

    Tenants that wait get devices in turn, by what each has had for its weight
    (`scheduler.tenant_weights`). Operators see every tenant; others see themselves.
    """
    from plexclient.wire.v1 import service_pb2
    from plexsvc.show.report import tenants_view

    with at.router() as router:
        reply = router.GetReport(service_pb2.ReportRequest())
    at.show(reply, tenants_view(reply))
