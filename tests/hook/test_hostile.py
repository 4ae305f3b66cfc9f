"""A hundred hostile messages to an agent's socket: each is answered with an error or ends only its own connection."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from worker_agent.service import Service
from worker_agent.socket_protocol import VERSION, claim_name

CONTROLLER = "127.0.0.1:1"  # Nobody listens there: the agent waits for it.
SECONDS = 60.0
HELLO: dict[str, Any] = {"type": "hello", "version": VERSION, "timeout": 0, "job": "mine", "rank": 0, "ranks": 1}
VALUES: tuple[Any, ...] = (None, -1, 1 << 70, 1e308, "", "x", [], {}, [1], True, "\0", "x" * 3000)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(CONTROLLER, node="hostile")
    stop = threading.Event()
    thread = threading.Thread(target=made.run, args=(stop,), daemon=True)
    thread.start()
    yield made
    stop.set()
    thread.join()
    made.close()


def say(data: bytes, descriptors: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the agent's answer, or {} when it has closed the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(SECONDS)
        connection.connect(claim_name(CONTROLLER, "hostile"))
        try:
            socket.send_fds(connection, [data], list(descriptors))
            answer = connection.recv(1 << 16)
        except ConnectionError:
            return {}
        return json.loads(answer) if answer else {}


def hostile(source: random.Random, number: int) -> bytes:
    if number % 4 == 0:
        return source.randbytes(source.randrange(1, 3000))
    if number % 4 == 1:
        texts = (
            "[" * 30_000,
            '{"type":' * 5_000,
            "{}",
            "[]",
            "null",
            '{"type": 3}',
            "NaN",
            '{"type": "bye"}',
            "x" * 65_000,
        )
        return source.choice(texts).encode()
    message = dict(HELLO)
    for _ in range(source.randrange(1, 3)):
        key = source.choice(list(message))
        # The test would wait for a long timeout.
        message[key] = source.choice(VALUES[4:8] if key == "timeout" else VALUES)
    return json.dumps(message).encode()


def test_hostile_messages(service: Service) -> None:
    source = random.Random(3)
    answered = 0
    for number in range(100):
        with open("/dev/null") as file:
            answer = say(hostile(source, number), (file.fileno(),) if number % 7 == 0 else ())
        assert answer.get("type") == "refused", number
        assert answer["message"], "no words"
        answered += answer["error"] == "ProtocolViolation"
    assert answered > 50
    whole = say(json.dumps(HELLO).encode())
    assert whole["error"] == "NotReadyError", "a trainer that makes sense hears of the controller"
    assert CONTROLLER in whole["message"]


def test_silent_connections_block_no_other_client(service: Service) -> None:
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(50)]
    try:
        for one in silent:
            one.connect(claim_name(CONTROLLER, "hostile"))
        assert say(json.dumps(HELLO).encode())["error"] == "NotReadyError"
    finally:
        for one in silent:
            one.close()
