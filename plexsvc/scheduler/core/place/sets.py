"""Sets: deployments that a job declared together, placed in one decision or not at all.

The largest training of a set, its *lead*, waits in the queue for all of them. It is placed only
with devices for all the set's instances; its further training finds room beside it at worst. So a
set that waits holds nothing that another waits for.
"""

from __future__ import annotations

from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.state import Deployment


def waiting(placement: Placement, deployment: Deployment) -> list[Deployment]:
    """Return what of a deployment's set waits for devices; of one that is alone, itself."""
    together = deployment.declared_with or (deployment.deployment_id,)
    unplaced = set(placement.unplaced)
    return [placement.deployments[d] for d in together if d in unplaced]


def lead(placement: Placement, deployment: Deployment) -> Deployment | None:
    """Return who waits for a deployment's whole set; None if it is alone, or of instances only."""
    together = [placement.deployments[d] for d in deployment.declared_with]
    training = [one for one in together if not one.is_rollout]
    return max(training, key=lambda one: one.num_devices, default=None)


def is_queued(placement: Placement, deployment: Deployment) -> bool:
    """Return whether a deployment that waits for training devices has a place in their queue.

    One whose lead waits has none.
    """
    if deployment.is_rollout:
        return False
    first = lead(placement, deployment)
    if first is None or first is deployment:
        return True
    return first.deployment_id not in placement.unplaced
