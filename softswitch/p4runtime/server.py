"""The P4Runtime server: devices, the gRPC server and its addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from softswitch.dataplane.device import Device
from softswitch.dataplane.program import Program
from softswitch.p4runtime.pipeline import Loader
from softswitch.p4runtime.service import ARBITRATION_S, MAX_STREAMS, Service
from softswitch.p4runtime.status import MAX_STATUS_BYTES
from softswitch.p4runtime.target import Target
from softswitch.p4runtime.timer import Timer

# A stream occupies a thread of the pool as long as it lives; threads are made on demand.
_MAX_THREADS = MAX_STREAMS + 64
_MAX_REQUEST_BYTES = 256 << 20


@dataclass(frozen=True)
class Tls:
    """The TLS files as PEM data. ``root_certificates`` checks clients if ``require_client`` is set."""

    private_key: bytes
    certificate: bytes
    root_certificates: bytes | None = None
    require_client: bool = False


class P4RuntimeServer:
    """Serves P4Runtime for ``devices``.

    ``load_program`` turns the ``p4_device_config`` of a pipeline config into a program. A client whose host is gone or
    whose process is stopped counts as disconnected: after ``keepalive_s`` seconds of silence it is pinged, and has
    twice that time to answer. The status of a failed batch is cut to ``max_status_bytes``, see
    :func:`softswitch.p4runtime.status.batch_status`. A stream whose client sends no arbitration message ends after
    ``arbitration_s`` seconds.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        load_program: Callable[[bytes], Program] = Program.load,
        keepalive_s: float = 10.0,
        max_status_bytes: int = MAX_STATUS_BYTES,
        arbitration_s: float = ARBITRATION_S,
    ) -> None:
        loader = Loader(load_program)
        self._timer = Timer()
        self.targets = {device.device_id: Target(device, loader, self._timer) for device in devices}
        self._server = grpc.server(
            ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="p4runtime"),
            handlers=[Service(self.targets, max_status_bytes, arbitration_s).handler()],
            options=[
                ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
                ("grpc.so_reuseport", 0),  # A second server on the address must fail, and not share its clients.
                ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
                ("grpc.keepalive_timeout_ms", int(keepalive_s * 2000)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.ping_timeout_ms", int(keepalive_s * 2000)),
            ],
        )

    def listen(self, address: str, tls: Tls | None = None) -> str:
        """Listen on ``host:port`` (port 0: any) or ``unix:path``, and return the address for clients.

        Raise OSError if the address cannot be bound.
        """
        try:
            if tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(
                    address,
                    grpc.ssl_server_credentials(
                        [(tls.private_key, tls.certificate)], tls.root_certificates, tls.require_client
                    ),
                )
        except RuntimeError:
            port = 0
        if port == 0:  # gRPC does not say why.
            raise OSError(f"cannot listen on {address}: in use by another process, or not an address of this machine")
        return address if address.startswith("unix") else f"{address.rsplit(':', 1)[0]}:{port}"

    def start(self) -> None:
        self._server.start()

    def stop(self, grace: float = 0.5) -> None:
        """Stop serving; RPCs in progress have ``grace`` seconds."""
        self._server.stop(grace).wait()
        self._timer.stop()
