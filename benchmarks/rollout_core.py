"""Decision time of the rollout core at many instances and samples.

    python -m benchmarks.rollout_core [--instances 1000] [--samples 100000] [--events 50000]

Instances send frames of two tokens a sample in turn; samples have lengths of a heavy tail. Every
500 frames an instance is killed and another joins, every 1,000 one is noticed, every 1,000 loads
are balanced. Prints one JSON line: microseconds of
processor time of an event by its kind, and of all.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId, VersionId
from plexsvc.rollout.core import events, orders
from plexsvc.rollout.core.events import InstanceId, SampleKey, SampleTokens
from plexsvc.rollout.core.machine import RolloutCore
from tests.rigs.rollout_invariants import check

OP = OperationId(b"benchmark".ljust(16, b"."))
KILLED = PlexError(ErrorCode.UNAVAILABLE, "killed")


class World:
    """Instances that do what the core orders, and the time that its decisions take."""

    def __init__(self, *, instances: int, samples: int, seed: int) -> None:
        self.dice = random.Random(seed)
        self.core = RolloutCore("job/rollout", max_losses=3, max_pending=64)
        self.took_us: dict[str, list[float]] = defaultdict(list)
        self.calls: dict[InstanceId, dict[int, dict[SampleKey, int]]] = {}
        self.stopped: dict[InstanceId, list[SampleKey]] = defaultdict(list)
        self.is_over = False
        self.joined = 0
        for _ in range(instances):
            self.join()
        self.left = {
            (number // 8, number % 8): 20 + int(self.dice.paretovariate(1.3) * 40)
            for number in range(samples)
        }
        self.tell(
            events.SamplesSubmitted(
                operation_id=OP,
                samples=dict.fromkeys(self.left, 0),
                prompt_tokens=(100,) * (samples // 8 + 1),
            )
        )

    def join(self) -> None:
        """Let a spot instance join."""
        self.joined += 1
        one = InstanceId(self.joined)
        self.calls[one] = {}
        joined = events.InstanceJoined(
            instance_id=one, address=f"i{one}", version=VersionId(), kind="spot"
        )
        self.tell(joined)

    def tell(self, event: events.Event) -> None:
        """Time one decision, and do what was ordered."""
        began_s = time.thread_time()
        ordered = self.core.handle(event)
        self.took_us[type(event).__name__].append((time.thread_time() - began_s) * 1e6)
        for order in ordered:
            match order:
                case orders.StartSamples():
                    known = self.core.generates[OP].samples
                    at = {key: known[key].num_tokens for key in order.samples}
                    self.calls[order.instance_id][order.call] = at
                case orders.StopSamples():
                    self.stopped[order.instance_id] += order.samples
                case orders.ReleaseInstance() | orders.GiveUpInstance():
                    self.calls.pop(order.instance_id, None)
                    self.join()
                case orders.AnswerSamples():
                    self.is_over = True

    def frame(self, one: InstanceId) -> None:
        """Send two tokens of every sample that an instance has begun, at most 64 of them."""
        arrivals: list[SampleTokens] = []
        for at in self.calls[one].values():
            for key in list(at)[: 64 - len(arrivals)]:
                if key in self.stopped[one]:
                    arrivals.append(SampleTokens(key, at.pop(key), 0, False, True))
                    continue
                count = min(2, self.left[key] - at[key])
                is_last = at[key] + count >= self.left[key]
                arrivals.append(SampleTokens(key, at[key], count, is_last))
                at[key] += count
                if is_last:
                    del at[key]
        self.calls[one] = {call: at for call, at in self.calls[one].items() if at}
        self.stopped[one].clear()
        if arrivals:
            self.tell(events.TokensArrived(operation_id=OP, instance_id=one, arrivals=arrivals))

    def kill(self, one: InstanceId) -> None:
        """Break all calls of an instance."""
        for call, at in list(self.calls[one].items()):
            self.tell(
                events.CallEnded(
                    operation_id=OP,
                    call=call,
                    instance_id=one,
                    address=f"i{one}",
                    samples=list(at),
                    error=KILLED,
                )
            )

    def run(self, count: int) -> None:
        """Play so many frames, or to the end."""
        for number in range(1, count + 1):
            if self.is_over:
                return
            self.frame(self.dice.choice(list(self.calls)))
            if number % 500 == 0:
                self.kill(self.dice.choice(list(self.calls)))
            if number % 1000 == 0:
                self.tell(events.InstanceDrained(instance_id=self.dice.choice(list(self.calls))))
                self.tell(events.Ticked(at_us=number * 1000))


def summary(took_us: Sequence[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and largest."""
    ordered = sorted(took_us)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    return {"count": len(ordered), "p50": at(0.5), "p99": at(0.99), "max": at(1.0)}


def rows(world: World) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the figures of each kind of event, and of all."""
    for name, took_us in world.took_us.items():
        yield name, summary(took_us)
    yield "all", summary([us for took_us in world.took_us.values() for us in took_us])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    world = World(instances=options.instances, samples=options.samples, seed=options.seed)
    world.run(options.events)
    check(world.core)
    print(json.dumps({**vars(options), "us": dict(rows(world))}))


if __name__ == "__main__":
    main()
