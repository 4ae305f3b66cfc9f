"""One BRI session through the SDE's client, with deadlines on every call and errors that say what to do.

The client (`client` below) is the SDE's module `bfrt_grpc.client`, or `tests.tofino.wire.client` in tests. It opens its
channel without options and calls without deadlines, so this module adds both.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from google.rpc import code_pb2

from controlplane.common.rpc.channels import open_channel
from controlplane.common.rpc.tls import switch_name
from controlplane.targets.base import RPC_SECONDS, NotPrimary, Operation, SwitchAddress, TargetError
from controlplane.targets.bri.entries import DataValue, Entry, KeyValue, Masked, Prefix, Step
from controlplane.targets.bri.schema import Schema, Table
from controlplane.targets.connecting import WriteRejected, explain

SUBSCRIBE_SECONDS = 3.0
BIND_GRACE_SECONDS = 2.0
"""Seconds for which a bind is retried if another client has the program: one that just left may not be gone yet."""

CONFIG_SECONDS = 30.0
"""Deadline of the request for the switch's program description, in seconds; the answer has the binary and megabytes of
context."""

ALL_PIPES = 0xFFFF

HINTS = {
    grpc.StatusCode.UNAVAILABLE: "bf_switchd is not running, or busy, or not at this address",
    grpc.StatusCode.UNIMPLEMENTED: "is that a BRI server? P4Runtime has another port",
}
"""Hints about what to check, by gRPC's code."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 64 << 20),
)


class DeadlineStub:
    """The client's stub with a deadline on every call."""

    def __init__(self, stub: Any, device_id: int) -> None:
        self._stub = stub
        self._device_id = device_id
        self._limits = threading.local()

    @property
    def timeout(self) -> float:
        """The seconds that a call of this thread may take."""
        return getattr(self._limits, "seconds", RPC_SECONDS)

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._limits.seconds = seconds

    def Write(self, request: Any, metadata: Any = None) -> Any:
        return self._stub.Write(request, timeout=self.timeout, metadata=metadata)

    def Read(self, request: Any, metadata: Any = None) -> Any:
        return self._stub.Read(request, timeout=self.timeout, metadata=metadata)

    def SetForwardingPipelineConfig(self, request: Any) -> Any:
        request.device_id = self._device_id  # The SDE's bind leaves the device id out.
        return self._stub.SetForwardingPipelineConfig(request, timeout=self.timeout)

    def GetForwardingPipelineConfig(self, request: Any) -> Any:
        return self._stub.GetForwardingPipelineConfig(request, timeout=max(self.timeout, CONFIG_SECONDS))

    def StreamChannel(self, requests: Iterator[Any]) -> Any:
        return self._stub.StreamChannel(requests)


def new_client_id() -> int:
    """Return a number that no other client of the switch uses; people and examples take small ones."""
    return random.SystemRandom().randrange(1 << 16, 1 << 32)


class Session:
    """A session that is connected and subscribed, and bound to the program if the switch runs it.

    Args:
        program: name of the P4 program; None to ask the switch without binding.
        client_id: must stay the same over sessions, since a switch recognises by it what is left of a session that was
            cut off.
        on_lost: called from another thread, with the reason, when the stream ends without `close`.

    Raises:
        NotPrimary: another client has the program.
        TargetError: the switch does not answer, or refuses.
    """

    def __init__(
        self,
        client: Any,
        switch: SwitchAddress,
        *,
        program: str | None,
        client_id: int,
        timeout: float,
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.client = client
        self.where = str(switch)
        self.on_lost = on_lost
        self.closed = threading.Event()
        self.reloaded = False
        self._ready = False
        self.bound = False
        self.programs: dict[str, bytes] = {}
        self._descriptions: dict[str, Schema] = {}
        deadline = time.monotonic() + timeout
        interface = client.ClientInterface(
            switch.address, client_id=client_id, device_id=switch.device_id, perform_subscribe=False
        )
        interface.channel.close()
        interface.channel = open_channel(switch.address, switch.tls, CHANNEL_OPTIONS, name=switch_name(switch.name))
        self.stub = DeadlineStub(client.bfruntime_pb2_grpc.BfRuntimeStub(interface.channel), switch.device_id)
        interface.stub = interface.reader_writer_interface.stub = self.stub
        self._interface = interface
        self._target = client.Target(device_id=switch.device_id, pipe_id=ALL_PIPES)
        self._tables: dict[str, Any] = {}
        try:
            try:
                grpc.channel_ready_future(interface.channel).result(timeout=timeout)
            except grpc.FutureTimeoutError:
                raise TargetError(
                    f"{self.where}: nobody answers; is bf_switchd running there (its BRI server listens on port 50052)?"
                ) from None
            self._subscribe()
            self._describe()
            if program is not None and program in self.programs:
                self._bind(program, deadline)
                self._info = self._call("reading the program's tables", lambda: interface.bfrt_info_get(program))
            self._ready = True
        except BaseException:
            self.close()
            raise

    # -- beginning and end ---------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        self._interface.set_up_stream()
        threading.Thread(target=self._watch, name=f"bri-{self.where}", daemon=True).start()
        quiet = self.client.Notifications(
            enable_learn=False,
            enable_idletimeout=False,
            enable_port_status_change=False,
            enable_entry_active=False,
            enable_selector_update_change=False,
        )
        if not self._interface.subscribe(quiet, timeout=SUBSCRIBE_SECONDS, num_tries=1):
            error = self._stream_error()
            if error is None:
                raise TargetError(f"{self.where} does not answer the subscription within {SUBSCRIBE_SECONDS:g} s")
            reason = f"{error.code().name}: {error.details()}"
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                reason += " (what the switch has left of our last session goes away when it notices that we are gone)"
            raise TargetError(f"{self.where} refused the subscription: {reason}")

    def _stream_error(self) -> grpc.RpcError | None:
        try:
            return self._interface.exception_q.get_nowait().grpc_error_get()
        except queue.Empty:
            return None

    def _watch(self) -> None:
        self._interface.stream_recv_thread.join()
        if not self.closed.is_set():
            self.closed.set()
            # Closing the channel ends calls under way: gRPC 1.85 sometimes misses the end, and the deadline, of a call
            # that a dying server cut.
            self._interface.channel.close()
            error = self._stream_error()
            if error is not None:
                self._interface.exception_q.put(_Kept(error))
            if self._ready:
                self.on_lost(f"{error.code().name}: {error.details()}" if error else "the switch closed the connection")

    def _describe(self) -> None:
        request = self.client.bfruntime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self._interface.device_id, client_id=self._interface.client_id
        )
        answer = self._call("asking for the program", lambda: self.stub.GetForwardingPipelineConfig(request))
        self.programs = {config.p4_name: config.bfruntime_info for config in answer.config}

    def _bind(self, program: str, deadline: float) -> None:
        grace = min(deadline, time.monotonic() + BIND_GRACE_SECONDS)
        while True:
            try:
                self._interface.bind_pipeline_config(program)
                self.bound = True
                return
            except self.client.BfruntimeRpcException as error:
                cause = error.grpc_error_get()
            except (AssertionError, grpc.RpcError) as error:
                raise TargetError(f"{self.where} refused the bind to program {program}: {error}") from None
            if cause.code() != grpc.StatusCode.ALREADY_EXISTS:
                raise explain(cause, self.where, f"the bind to program {program}", HINTS)
            if time.monotonic() + 0.1 > grace:
                raise NotPrimary(
                    f"{self.where}: another client has program {program} ({cause.details()}); BRI gives a program to "
                    "one client only: end that one (a controller, a PTF test, a script), then try again"
                )
            time.sleep(0.1)

    @property
    def alive(self) -> bool:
        """Whether the stream is open, the session is bound to the program, and the program has not been loaded anew."""
        while not self.reloaded:
            try:
                message = self._interface.stream_in_q.get_nowait()
            except queue.Empty:
                break
            self.reloaded = message.HasField("set_forwarding_pipeline_config_response")
        return self.bound and not self.closed.is_set() and not self.reloaded

    def close(self) -> None:
        """End the session. The stream is cancelled first, so that a dead switch cannot delay this."""
        self.closed.set()
        if self._interface.stream is not None:
            self._interface.stream.cancel()
            self._interface.tear_down_stream()
        else:
            self._interface.channel.close()
            # This keeps the SDE's client from tearing down a stream that does not exist.
            self._interface.is_independent = True

    # -- tables --------------------------------------------------------------------------------------------------

    def description(self, program: str) -> Schema:
        """Return the tables of a program that the switch runs, as the switch describes them. Raise SchemaError where
        they cannot be read."""
        if program not in self._descriptions:
            self._descriptions[program] = Schema.parse(self.programs[program], f"{self.where}: program {program}")
        return self._descriptions[program]

    def table(self, name: str) -> Any:
        if not self.bound:
            raise TargetError(f"{self.where} does not run our program: it runs {', '.join(self.programs) or 'none'}")
        if name not in self._tables:
            self._tables[name] = self._info.table_get(name)
        return self._tables[name]

    def write(self, table: Table, operation: Operation, batch: Sequence[Step], *, rollback: bool) -> None:
        """Send steps with one operation on one table as one request. With `rollback`, all steps are applied or none,
        which the switch supports for tables of the P4 program. Raise WriteRejected where it refuses."""
        there = self.table(table.name)
        keys = [there.make_key(self._key(step.entry)) for step in batch]
        modes = self.client.bfruntime_pb2.WriteRequest
        options = {
            "atomicity": modes.ROLLBACK_ON_ERROR if rollback else modes.CONTINUE_ON_ERROR,
            "metadata": self._server_deadline(),
        }
        try:
            if operation is Operation.DELETE:
                there.entry_del(self._target, keys, **options)
                return
            datas = [there.make_data(self._data(table, step.entry), step.entry.action) for step in batch]
            write = there.entry_add if operation is Operation.INSERT else there.entry_mod
            write(self._target, keys, datas, **options)
        except self.client.BfruntimeRpcException as error:
            failures = [(i, code_pb2.Code.Name(e.canonical_code), e.message) for i, e in error.sub_errors_get()]
            raise WriteRejected(failures, str(explain(error.grpc_error_get(), self.where, "a write", HINTS))) from None
        except (RuntimeError, AssertionError, ValueError, grpc.RpcError) as error:
            raise WriteRejected([], f"{self.where}: a write failed: {error}") from None

    def read(
        self, table: Table, key: Sequence[tuple[str, KeyValue]] | None = None, *, from_hw: bool = False
    ) -> list[Entry]:
        """Return all entries of a table, or only the one with this key."""
        there = self.table(table.name)
        keys = None if key is None else [there.make_key(self._key_tuples(key))]

        def entries() -> list[Entry]:
            answer = there.entry_get(self._target, keys, {"from_hw": from_hw}, metadata=self._server_deadline())
            return [_entry(table, found_key.to_dict(), data.to_dict()) for data, found_key in answer]

        return self._call(f"reading {table.name}", entries)

    def heartbeat(self, table: Table, timeout: float) -> None:
        """Make a small request that the switch must answer. Raise TargetError where it does not."""
        with self.within(timeout):
            usage = self.table(table.name).usage_get
            self._call("a heartbeat", lambda: list(usage(self._target, flags={"from_hw": False})))

    @contextmanager
    def within(self, timeout: float) -> Iterator[None]:
        """Limit each call of this thread to `timeout` seconds while the context lasts."""
        before, self.stub.timeout = self.stub.timeout, timeout
        try:
            yield
        finally:
            self.stub.timeout = before

    def _call(self, doing: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except self.client.BfruntimeRpcException as error:
            causes = "; ".join(
                f"{code_pb2.Code.Name(e.canonical_code)}: {e.message}" for _, e in error.sub_errors_get()
            )
            explained = explain(error.grpc_error_get(), self.where, doing, HINTS)
            raise TargetError(f"{explained}{': ' + causes if causes else ''}") from None
        except grpc.RpcError as error:
            raise explain(error, self.where, doing, HINTS) from None
        except (RuntimeError, AssertionError, KeyError, ValueError) as error:
            if self.closed.is_set():
                raise TargetError(f"{self.where}: {doing} failed: the connection is closed") from None
            raise TargetError(f"{self.where}: {doing} failed: {type(error).__name__}: {error}") from None

    def _server_deadline(self) -> tuple[tuple[str, str], ...]:
        # The switch gets a deadline, too, so that it stops before we undo what it may have done. Its check compares the
        # nanoseconds even before the seconds are over; with the largest value it never strikes early.
        return (("deadline_sec", str(max(1, int(self.stub.timeout) - 1))), ("deadline_nsec", "999999999"))

    def _key(self, entry: Entry) -> list[Any]:
        return self._key_tuples(entry.key)

    def _key_tuples(self, key: Sequence[tuple[str, KeyValue]]) -> list[Any]:
        made = []
        for name, value in key:
            if isinstance(value, Prefix):
                made.append(self.client.KeyTuple(name, value=value.value, prefix_len=value.length))
            elif isinstance(value, Masked):
                made.append(self.client.KeyTuple(name, value=value.value, mask=value.mask))
            else:
                made.append(self.client.KeyTuple(name, value=value))
        return made

    def _data(self, table: Table, entry: Entry) -> list[Any]:
        fields = table.fields(entry.action)
        made = []
        for name, value in entry.data:
            if isinstance(value, tuple):
                kind = "bool_arr_val" if fields[name].kind == "bool" else "int_arr_val"
                made.append(self.client.DataTuple(name, **{kind: list(value)}))
            elif isinstance(value, bool):
                made.append(self.client.DataTuple(name, bool_val=value))
            elif isinstance(value, str):
                made.append(self.client.DataTuple(name, str_val=value))
            else:
                made.append(self.client.DataTuple(name, val=value))
        return made


class _Kept:
    """Holds a stream's error, which is put back into the queue for callers that ask after the watcher has."""

    def __init__(self, error: grpc.RpcError) -> None:
        self._error = error

    def grpc_error_get(self) -> grpc.RpcError:
        return self._error


def _entry(table: Table, key: Mapping[str, Mapping[str, Any]], data: Mapping[str, Any]) -> Entry:
    """Return the entry that the client's to_dict describes, in the schema's order, without data fields that were not
    sent."""
    keys: list[tuple[str, KeyValue]] = []
    for name, field in table.keys.items():
        given = key.get(name, {"value": 0})
        if field.match == "LPM":
            keys.append((name, Prefix(given["value"], given.get("prefix_len", 0))))
        elif field.match == "Ternary":
            mask = given.get("mask", 0)
            keys.append((name, Masked(given["value"] & mask, mask)))
        else:
            keys.append((name, given["value"]))
    values: list[tuple[str, DataValue]] = []
    for name in table.fields(data["action_name"]):
        value = data.get(name)
        if isinstance(value, list):
            values.append((name, tuple(value)))
        elif value is not None:
            values.append((name, value))
    return Entry(table.name, tuple(keys), data["action_name"], tuple(values))
