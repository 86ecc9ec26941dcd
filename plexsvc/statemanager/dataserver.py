"""The daemon's side of the data plane: a Unix socket and one thread a client.

The end of a client's `call` connection is how its death is noticed: all it had is freed then.
Descriptors in answers are duplicates, closed once sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import common_pb2, statemanager_pb2
from plexsvc.errors import PlexError, bad_request, not_found
from plexsvc.ids import JobId, TenantId, VersionId, WpgId
from plexsvc.log import Log
from plexsvc.residency import Home
from plexsvc.statelink import dataplane
from plexsvc.statelink.client import ExportReport
from plexsvc.statelink.dataplane import Header, Message
from plexsvc.statemanager.accepting import Acceptor, listen_at
from plexsvc.statemanager.clients import Clients
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.node import ManagedNode, region_state
from plexsvc.statemanager.parking import Parking

log = Log(__name__)

MAX_CLIENTS: Final = 1024
HELLO_TIMEOUT_S: Final = 30.0
"""Longest wait for a new connection's first message."""

Call = Callable[[RankLink, Message], Message]


class DataServer:
    """Accepts clients of `node` until closed."""

    def __init__(
        self, node: ManagedNode, clients: Clients, path: Path, *, parking: Parking
    ) -> None:
        self.path = path
        self._node = node
        self._parking = parking
        self._clients = clients
        self._waiting: dict[str, RankLink] = {}  # by token, until the data connection comes
        self._calls: Mapping[str, Call] = {
            "allocate": self._allocate,
            "seal": self._seal,
            "set_index": self._set_index,
            "stepped": self._stepped,
            "open_staged": self._open_staged,
            "create_staged": self._create_staged,
            "seal_staged": self._seal_staged,
            "drop_staged": self._drop_staged,
            "open_version": self._open_version,
            "close_version": self._close_version,
            "fetch_version": self._fetch_version,
        }
        self._acceptor = Acceptor(listen_at(path), self._serve, most=MAX_CLIENTS, name="data")

    def close(self) -> None:
        """Stop accepting and remove the socket."""
        self._acceptor.close()
        self.path.unlink(missing_ok=True)

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(HELLO_TIMEOUT_S)
            first = _receive(sock)
            if first.header.get("op") == "attach":
                # The link owns the socket from here on, and the slot is free for another.
                self._attach(sock, first.header)
                return
            self._serve_client(sock, first)
        except (OSError, EOFError) as error:
            log.debug("connection ended", error=error)
        except PlexError as error:
            log.warning("connection cut", error=error)
        sock.close()

    def _serve_client(self, sock: socket.socket, hello: Message) -> None:
        try:
            link = self._connect(sock, hello.header)
        except PlexError as error:
            dataplane.send(sock, dataplane.failure(error))
            return
        try:
            self._waiting[link.token] = link
            granted = link.memory.grant()
            answer = {"client_id": link.token, "kind": link.memory.tier.kind, **granted.header}
            dataplane.send(sock, Message(header=answer, fds=granted.fds))
            # A rank may ask nothing for hours; its end shows as the end of the connection.
            sock.settimeout(None)
            while True:
                _send_and_close(sock, self._answer(link, _receive(sock)))
        finally:
            self._waiting.pop(link.token, None)
            self._clients.disconnect(link)

    def _connect(self, sock: socket.socket, header: Header) -> RankLink:
        """Return the link of a client that a predecessor knew, or of one that starts afresh."""
        try:
            wpg_id, job_id = WpgId(str(header["wpg_id"])), JobId(str(header["job_id"]))
            rank, incarnation = int(header["rank"]), int(header["incarnation"])
            device_index = int(header["device_index"])
            is_returning = bool(header.get("resume"))
            versions = header["held"] if is_returning else ()
            held = {_version_key(version): int(version["count"]) for version in versions}
            has_regions = is_returning and bool(header["has_regions"])
        except (KeyError, TypeError, ValueError) as error:
            raise bad_request(
                f"hello lacks or garbles {error}; this is the state manager's data socket"
            ) from error
        if is_returning:
            link = self._clients.resume(
                sock, wpg_id=wpg_id, rank=rank, incarnation=incarnation, held=held
            )
            if link is not None:
                return link
        if has_regions:
            raise not_found(
                f"{wpg_id}/{rank} has no state with this state manager; rebuild the WPG"
            )
        return self._clients.connect(
            sock,
            wpg_id=wpg_id,
            job_id=job_id,
            rank=rank,
            incarnation=incarnation,
            device_index=device_index,
        )

    def _attach(self, sock: socket.socket, header: Header) -> None:
        link = self._waiting.pop(str(header.get("client_id")), None)
        if link is None:
            error = bad_request("no client waits for this data connection")
            dataplane.send(sock, dataplane.failure(error))
            sock.close()
            return
        link.attach_data(sock, timeout_us=self._node.config.rank_timeout_us)
        dataplane.send(sock, Message(header={}))
        self._clients.settle(link)

    def _answer(self, link: RankLink, request: Message) -> Message:
        call = self._calls.get(str(request.header.get("op")))
        try:
            if call is None:
                return _unknown(request)
            answer = call(link, request)
        except PlexError as error:
            return dataplane.failure(error)
        except (KeyError, TypeError, ValueError) as error:
            text = f"call {request.header.get('op')!r} is garbled: {error!r}"
            return dataplane.failure(bad_request(text))
        try:
            self._node.book.settle()  # a successor would know of it
        except PlexError as error:
            dataplane.close_all(answer.fds)
            return dataplane.failure(error)
        return answer

    def _allocate(self, link: RankLink, request: Message) -> Message:
        regions = [
            region_state(
                str(wanted["name"]),
                int(wanted["nbytes"]),
                is_droppable=bool(wanted["droppable"]),
                shared_key=str(wanted["shared"]),
                home=Home(wanted.get("home", Home.DEVICE)),
                granule=link.memory.tier.granule_bytes,
            )
            for wanted in request.header["regions"]
        ]
        is_repeat = bool(request.header.get("repeat"))

        def allocate() -> None:
            try:
                self._node.allocate(link, regions, is_repeat=is_repeat)
            except PlexError:
                link.say_done(0)  # it waits while others' state goes to disk
                raise

        self._parking.with_room(allocate)
        return _granted(link, {region.name for region in regions})

    def _seal(self, link: RankLink, request: Message) -> Message:
        name = str(request.header["name"])
        self._node.seal(link, name)
        return _granted(link, {name})

    def _set_index(self, link: RankLink, request: Message) -> Message:
        index = statemanager_pb2.VersionManifest.FromString(request.body)
        self._node.set_index(link, list(index.pieces))
        return Message(header={})

    def _stepped(self, link: RankLink, request: Message) -> Message:
        self._node.note_step(link, ExportReport.of(request.header))
        return Message(header={})

    def _open_staged(self, link: RankLink, request: Message) -> Message:
        staging_id = bytes.fromhex(request.header["staging_id"])
        fd, bundle = self._node.staging.open(staging_id, job_id=link.job_id)
        specs = common_pb2.TensorBundle(tensors=bundle.specs).SerializeToString()
        return Message(header={"nbytes": bundle.file.nbytes}, body=specs, fds=(fd,))

    def _create_staged(self, link: RankLink, request: Message) -> Message:
        specs = common_pb2.TensorBundle.FromString(request.body).tensors
        nbytes = int(request.header["nbytes"])
        staging_id = bytes.fromhex(request.header["staging_id"])
        fd = self._node.staging.create(
            staging_id,
            specs,
            nbytes,
            tenant=TenantId(str(request.header["tenant"])),
            job_id=link.job_id,
            owner=link.client_id,
        )
        return Message(header={"nbytes": nbytes}, fds=(fd,))

    def _seal_staged(self, link: RankLink, request: Message) -> Message:
        staging_id = bytes.fromhex(request.header["staging_id"])
        self._node.staging.seal(staging_id, job_id=link.job_id)
        return Message(header={})

    def _drop_staged(self, link: RankLink, request: Message) -> Message:
        staging_id = bytes.fromhex(request.header["staging_id"])
        self._node.staging.drop([staging_id], job_id=link.job_id)
        return Message(header={})

    def _open_version(self, link: RankLink, request: Message) -> Message:
        fd, manifest = self._node.publisher.open(
            _version_key(request.header), job_id=link.job_id, holder=link.client_id
        )
        body = manifest.SerializeToString()
        return Message(header={"nbytes": manifest.nbytes}, body=body, fds=(fd,))

    def _fetch_version(self, link: RankLink, request: Message) -> Message:
        version = statemanager_pb2.PublishedVersion.FromString(request.body)
        fd, manifest = self._node.arrivals.open(
            version, version.holders[0], job_id=link.job_id, tell=link.say_done
        )
        body = manifest.SerializeToString()
        return Message(header={"nbytes": manifest.nbytes}, body=body, fds=(fd,))

    def _close_version(self, link: RankLink, request: Message) -> Message:
        self._node.publisher.unhold(_version_key(request.header), link.client_id)
        return Message(header={})


def _granted(link: RankLink, names: Collection[str]) -> Message:
    granted = link.memory.grant()
    names = {*names, *(link.memory.mapped.get(name, name) for name in names)}
    only = {name: at for name, at in granted.header["regions"].items() if name in names}
    return Message(header={"regions": only}, fds=tuple(os.dup(fd) for fd in granted.fds))


def _receive(sock: socket.socket) -> Message:
    """Return the next message of a client; clients have no descriptors to give."""
    message = dataplane.receive(sock)
    dataplane.close_all(message.fds)
    return message


def _send_and_close(sock: socket.socket, answer: Message) -> None:
    try:
        dataplane.send(sock, answer)
    finally:
        dataplane.close_all(answer.fds)


def _version_key(header: Header) -> VersionId:
    return VersionId(
        str(header["deployment_id"]), int(header["incarnation"]), int(header["version"])
    )


def _unknown(request: Message) -> Message:
    text = f"unknown call {request.header.get('op')!r} on the data plane"
    return dataplane.failure(bad_request(text))
