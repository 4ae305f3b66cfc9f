"""Elects the client that may write, among the streams of a device, separately for each role.

The P4Runtime specification describes this in "Client Arbitration and Controller Replication". A role is a name, and a
``role.config`` that its primary may set (:mod:`softswitch.p4runtime.roles`); without one it has access to the whole
pipeline. This module does not know gRPC: a :class:`Session` has a ``send`` function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf import any_pb2
from google.rpc import code_pb2

from softswitch.p4runtime import roles
from softswitch.p4runtime.status import P4RuntimeError, invalid, not_found
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

MAX_SESSIONS_PER_ROLE = 64
# most roles of a device; a role that had a primary is never forgotten, because its highest election id is not
MAX_ROLES = 256
MAX_ROLE_NAME = 1024  # bytes


class Session:
    """One client's stream to one device.

    ``send`` sends a message, and returns False where it was dropped because the client is slow; ``end`` ends the
    stream. ``role`` is ``None`` until its first arbitration message.
    """

    def __init__(
        self, send: Callable[[p4rt.StreamMessageResponse], bool], end: Callable[[P4RuntimeError], None]
    ) -> None:
        self.send = send
        self.end = end
        self.role: str | None = None
        self.election_id: int | None = None


@dataclass
class _Role:
    name: str
    sessions: list[Session] = field(default_factory=list)
    highest: int | None = None  # the highest election id ever seen; only a restart of the device forgets it
    primary: Session | None = None  # read without the lock: assignments are atomic
    config: any_pb2.Any | None = None  # the last one that a primary gave
    scope: roles.Scope = roles.EVERYTHING  # the meaning of `config`


class Arbiter:
    """Elects the primary of each role of one device.

    A thread that changes the device holds ``write_lock``: a new primary is accepted only after the writes of the old
    one are done. ``changed`` is called when a role has another primary than before; it must not wait for anything.
    """

    def __init__(self, device_id: int, write_lock: threading.RLock, changed: Callable[[], None] = lambda: None) -> None:
        self._device_id = device_id
        self._changed = changed
        self._write_lock = write_lock
        self._lock = threading.Lock()
        self._roles: dict[str, _Role] = {"": _Role("")}
        self._closed: P4RuntimeError | None = None

    def update(self, session: Session, message: p4rt.MasterArbitrationUpdate) -> None:
        """Handle a client's arbitration message; on a :class:`P4RuntimeError` the caller must end its stream."""
        name = _role_name(message.role)
        config = message.role.config if message.role.HasField("config") else None
        scope = roles.EVERYTHING if config is None else roles.parse(config)
        election_id = _election_id(message)
        with self._lock:
            if self._closed is not None:
                raise self._closed
            self._check_exclusive(name, scope)
            role = self._admit(session, name, election_id)
            was_primary = role.primary is session
            if election_id is not None and (role.highest is None or election_id >= role.highest):
                role.config, role.scope = config, scope
                self._make_primary(role, session, election_id)
                return
            if was_primary:
                role.primary = None
            session.election_id = election_id
            self._notify(role, role.sessions if was_primary else [session])

    def disconnect(self, session: Session) -> None:
        """Handle the end of a session's stream. A second call does nothing."""
        with self._lock:
            role = self._roles.get(session.role) if session.role is not None else None
            if role is None or session not in role.sessions:
                return
            role.sessions.remove(session)
            if role.primary is session:
                role.primary = None
                self._notify(role, role.sessions)
            if role.name and not role.sessions and role.highest is None:
                del self._roles[role.name]

    def require_primary(self, role: str, election_id: int | None) -> None:
        """Check that a write comes from the primary of ``role``; raise an error that refuses it otherwise."""
        primary = self.require_role(role).primary
        if primary is None or election_id is None or primary.election_id != election_id:
            raise P4RuntimeError(
                code_pb2.PERMISSION_DENIED,
                f"not the primary: election id {election_id}, the primary's is "
                f"{None if primary is None else primary.election_id}",
            )

    def require_role(self, name: str) -> _Role:
        """Return the role of this name. Raise an error where no client of this device has ever had it."""
        role = self._roles.get(name)
        if role is None:
            raise not_found(f"device {self._device_id} has no role {name!r}; open a stream with this role first")
        return role

    def is_primary(self, session: Session) -> bool:
        role = self._roles.get(session.role) if session.role is not None else None
        return role is not None and role.primary is session

    def primaries(self) -> list[tuple[Session, roles.Scope]]:
        """Return the primary of each role that has one, with its scope."""
        found = [(role.primary, role.scope) for role in list(self._roles.values())]
        return [(primary, scope) for primary, scope in found if primary is not None]

    def scope_of(self, role: str) -> roles.Scope:
        """Return a role's scope. Raise NOT_FOUND for a role that no client ever had."""
        return self.require_role(role).scope

    def close(self, reason: P4RuntimeError) -> None:
        """End all sessions, and refuse new ones, because the device restarts."""
        with self._lock:
            self._closed = reason
            sessions = [session for role in self._roles.values() for session in role.sessions]
        for session in sessions:
            session.end(reason)

    def summary(self) -> dict[str, dict[str, int | None]]:
        """Return, per role, the number of live sessions and the primary's election id."""
        with self._lock:
            return {
                role.name: {
                    "sessions": len(role.sessions),
                    "primary_election_id": None if role.primary is None else role.primary.election_id,
                }
                for role in self._roles.values()
            }

    def _check_exclusive(self, name: str, scope: roles.Scope) -> None:
        """Check that an object that is exclusive to one role is in the configuration of no other role."""
        for other in self._roles.values():
            if other.name == name or other.scope.ids is None or scope.ids is None:
                continue
            both = (other.scope.exclusive & scope.ids) | (scope.exclusive & other.scope.ids)
            if both:
                raise invalid(f"role {name!r}: id {min(both)} is in the config of role {other.name!r}, and exclusive")

    def _admit(self, session: Session, name: str, election_id: int | None) -> _Role:
        if session.role is not None and session.role != name:
            raise P4RuntimeError(
                code_pb2.FAILED_PRECONDITION,
                f"this stream has role {session.role!r}; open a new one for role {name!r}",
            )
        role = self._roles.get(name)
        if role is None:
            if len(name.encode()) > MAX_ROLE_NAME:
                raise invalid(f"the role's name is longer than {MAX_ROLE_NAME} bytes")
            if len(self._roles) >= MAX_ROLES:
                raise P4RuntimeError(
                    code_pb2.RESOURCE_EXHAUSTED, f"device {self._device_id} has had {MAX_ROLES} roles already"
                )
            role = _Role(name)
        if election_id is not None and any(
            other is not session and other.election_id == election_id for other in role.sessions
        ):
            raise invalid(f"election id {election_id} is used by another live client of role {name!r}")
        if session.role is None:
            if len(role.sessions) >= MAX_SESSIONS_PER_ROLE:
                raise P4RuntimeError(
                    code_pb2.RESOURCE_EXHAUSTED,
                    f"device {self._device_id} has {MAX_SESSIONS_PER_ROLE} streams for role {name!r} already",
                )
            self._roles[name] = role
            role.sessions.append(session)
            session.role = name
        return role

    def _make_primary(self, role: _Role, session: Session, election_id: int) -> None:
        was_primary = role.primary is session
        stays = was_primary and session.election_id == election_id
        if not stays:
            role.primary = None  # From here on the old primary's writes are refused.
        session.election_id = election_id
        role.highest = election_id
        self._notify(role, [other for other in role.sessions if other is not session], elected=True)
        if not stays:
            with self._write_lock:  # Writes that have begun end before the new primary starts.
                role.primary = session
        self._notify(role, [session])
        if not was_primary:
            self._changed()

    def _notify(self, role: _Role, sessions: list[Session], elected: bool = False) -> None:
        for session in sessions:
            message = p4rt.StreamMessageResponse()
            update = message.arbitration
            update.device_id = self._device_id
            if role.name:
                update.role.name = role.name
            if role.config is not None:
                update.role.config.CopyFrom(role.config)
            if role.highest is not None:
                update.election_id.high = role.highest >> 64
                update.election_id.low = role.highest & (1 << 64) - 1
            if role.primary is session:
                update.status.code = code_pb2.OK
            elif role.primary is not None or elected:
                update.status.code = code_pb2.ALREADY_EXISTS
                update.status.message = "another client is primary"
            else:
                update.status.code = code_pb2.NOT_FOUND
                update.status.message = "there is no primary"
            session.send(message)


def _role_name(role: p4rt.Role) -> str:
    if role.id:
        raise invalid("role.id is deprecated and not supported; set role.name")
    if role.HasField("config") and not role.name:
        raise invalid("the default role has access to the whole pipeline; role.config needs a role.name")
    return role.name


def _election_id(message: p4rt.MasterArbitrationUpdate) -> int | None:
    return to_int(message.election_id) if message.HasField("election_id") else None


def to_int(election_id: p4rt.Uint128) -> int:
    """Return the 128-bit number in a ``Uint128``."""
    return election_id.high << 64 | election_id.low
