"""Requests in flight in a vLLM engine: each step's outputs join the `DeltaBox` of their caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vllm.v1.engine import EngineCoreOutput, FinishReason

from plexclient.wire.v1 import operations_pb2, rollout_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import VersionId
from plexsvc.rollout.engines.base import FINISH_ABORT, FINISH_LENGTH, FINISH_STOP, DeltaBox
from plexsvc.rollout.engines.stopping import StopWatcher
from plexsvc.rollout.engines.texts import Pieces, Texts
from plexsvc.rollout.engines.vllm import admission, stepping
from plexsvc.rollout.engines.vllm.adapters import Seat

FINISH: Final = {
    FinishReason.STOP: FINISH_STOP,
    FinishReason.LENGTH: FINISH_LENGTH,
    FinishReason.ABORT: FINISH_ABORT,
}


@dataclass(slots=True)
class _Flight:
    """A request in the engine: whose box it fills, its stop strings, its text."""

    box: DeltaBox
    sampling: operations_pb2.SamplingParams
    watcher: StopWatcher | None
    pieces: Pieces | None
    seat: int


class Flights:
    """The requests in flight of one engine. Owned by the event loop."""

    def __init__(self, texts: Texts, *, stop: Callable[[str], object]) -> None:
        """Have the core end by `stop` what reached a stop string, of which it knows nothing."""
        self._texts = texts
        self._stop = stop
        self._flights: dict[str, _Flight] = {}
        self.generated = 0
        """Tokens that were made."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._flights

    def add(self, request: rollout_pb2.InstanceRequest, box: DeltaBox, *, seat: int) -> None:
        """Take in a request before its first output."""
        sampling, texts = request.sampling, self._texts
        watcher = admission.watcher(request, texts=texts) if sampling.stop else None
        pieces = texts.pieces(request) if sampling.texts else None
        box.add_request(request)
        self._flights[request.request_id] = _Flight(box, sampling, watcher, pieces, seat)

    def of_seat(self, seat: int) -> list[str]:
        """Return the requests of one seat."""
        return [request_id for request_id, one in self._flights.items() if one.seat == seat]

    def abort(self, request_ids: Sequence[str]) -> list[str]:
        """End these with finish reason `abort`; return which of them were in flight."""
        mine = [request_id for request_id in request_ids if request_id in self._flights]
        for request_id in mine:
            self._end(request_id, reason=FINISH_ABORT)
        return mine

    def fail(self, error: PlexError) -> None:
        """End all of them with an error."""
        for flight in self._flights.values():
            flight.box.fail(error)
        self._flights.clear()

    def deliver(self, outputs: stepping.Outputs, seats: Mapping[int, Seat]) -> None:
        """Take the outputs of a step, which was made with the adapters of these seats."""
        for step in outputs.values():
            version = stepping.version_of(step.weight_version)
            for output in step.outputs:
                flight = self._flights.get(output.request_id)
                if flight is not None:
                    used = seats[flight.seat] if flight.seat else None
                    self._collect(output, flight, version=used.version if used else version)

    def _collect(self, output: EngineCoreOutput, flight: _Flight, *, version: VersionId) -> None:
        tokens, request_id = output.new_token_ids, output.request_id
        stop = flight.watcher.feed(tokens) if flight.watcher is not None else None
        kept = len(tokens) if stop is None else stop.kept
        self.generated += kept
        news = stepping.news_of(output, kept, asked=flight.sampling, pieces=flight.pieces)
        flight.box.put(request_id, news, version=version)
        if stop is not None:
            self._end(request_id, reason=FINISH_STOP, stop_reason=stop.text)
            if output.finish_reason is None:
                self._stop(request_id)
        elif output.finish_reason in FINISH:
            stop_reason = "" if output.stop_reason is None else str(output.stop_reason)
            self._end(request_id, reason=FINISH[output.finish_reason], stop_reason=stop_reason)
        elif output.finish_reason is not None:
            code = ErrorCode.BAD_REQUEST if flight.sampling.structured else ErrorCode.INTERNAL
            cause = f"vLLM ended {request_id} with {output.finish_reason.name}"
            if flight.sampling.structured:
                cause = f"{cause}: structured_outputs have a grammar that cannot go on"
            flight.box.fail(PlexError(code, cause))

    def _end(self, request_id: str, *, reason: int, stop_reason: str = "") -> None:
        flight = self._flights.pop(request_id)
        flight.box.finish(request_id, reason=reason, stop_reason=stop_reason)
