"""Weight delivery: publish on the source deployment, then pull on the target."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from plexclient.calls import Cancellable, call
from plexclient.checks import of_type
from plexclient.deployment import Deployment
from plexclient.errors import bad_request
from plexclient.lane import Ticket
from plexclient.wire.v1 import operations_pb2


class Synced(Deployment):
    """A deployment that takes its weights from another one of the job."""

    @call
    def sync(self, source: Deployment) -> Future[int]:
        """Take the weights that `source` has after the operations called on it so far.

        What is called on this deployment afterwards sees them; what is called on `source` after
        that does not change them. Returns the weight version, which is the one before if nothing
        has changed the parameters of `source` since.

        Raises:
            PlexError: `bad_request` when `source` is no deployment, belongs to another job or is
                this deployment.
        """
        return self._take_weights(source)

    def _take_weights(self, source: Deployment, *, finishes_turns: bool = False) -> Future[int]:
        of_type("source", source, Deployment, takes="a deployment of the job, as deploy returns it")
        if source is self or source.job_session is not self.job_session:
            raise bad_request(
                f"{self.name}.sync({source.name}): the source must be another deployment of the "
                "same job; to share weights between jobs, export and deploy(model=path)"
            )
        with self.job_session.order:
            publish = source.lane.enter(operations_pb2.Operation(publish=operations_pb2.Publish()))
            pull = self.lane.enter(
                operations_pb2.Operation(
                    pull=operations_pb2.Pull(
                        source_deployment_id=source.deployment_id,
                        version=publish.seq,
                        finishes_turns=finishes_turns,
                    )
                ),
                after=[publish.operation_id],
            )
            return self._deliver(source, publish=publish, pull=pull)

    def _deliver(self, source: Deployment, *, publish: Ticket, pull: Ticket) -> Future[int]:
        """Start both; the publish is released only when the pull that waits for it is over."""
        start = self.background.start
        published = start(lambda: source.lane.answer(publish))
        pulled = start(lambda: self.lane.answer(pull))

        async def both() -> int:
            answers = (asyncio.wrap_future(published), asyncio.wrap_future(pulled))
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
            source.lane.release(publish)
            self.lane.release(pull)
            versions: list[int] = []
            for found in outcomes:
                if isinstance(found, BaseException):
                    raise found
                versions.append(found.weight_version)
            return versions[0]

        def cancel() -> None:
            source.lane.cancel(publish)
            self.lane.cancel(pull)

        return start(both, future=Cancellable(cancel))
