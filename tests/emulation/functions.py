"""Functions that tests run in hosts."""

import os
import signal
import subprocess
import time

from topologies.zygote import Channel


def fail(_: Channel, *, word: str) -> None:
    raise ValueError(word)


def die(_: Channel) -> None:
    print("last words", flush=True)
    os._exit(3)


def echo(channel: Channel) -> str:
    channel.send(channel.receive(30))
    return subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout


def hang(_: Channel) -> None:
    """Does not listen to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
