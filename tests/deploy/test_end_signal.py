"""A process that waits for its end gets every signal, whichever thread the system delivers it to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from inart.command import main as inart

PROGRAM = """
import signal, threading
from {module} import EndSignal

end = EndSignal()
# The main thread is not interrupted where it waits, as when the signal comes just before it begins to.
waiting = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.{name}))
waiting.start()
end.wait()
print("ended")
"""


@pytest.mark.parametrize("module", ["controlplane.service.serving", "softswitch.app.end_signal"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_to_another_thread_ends_the_wait(module: str, name: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(module=module, name=name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr


SILENT = """
import os, signal, threading
from controlplane.targets.fabric import everywhere

def ask(switch):
    if switch == "s2":
        os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

try:
    everywhere(["s1", "s2"], ask)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_does_not_wait_for_silent_switches() -> None:
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


def test_an_interrupted_command_prints_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    # Importing takes a while on a busy machine.
    monkeypatch.setattr("inart.command.importlib.import_module", interrupt)
    assert inart(["plan", "--topology", "testbed"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("words", [["site", "coordinator"], ["ps"], ["serve", "--port", "1"]])
def test_a_server_in_the_background_of_a_script_hears_sigint_while_it_imports(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Shells without job control start what has `&` with SIGINT ignored; servers that are up hear it all the same."""

    def import_meanwhile(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr("inart.command.importlib.import_module", import_meanwhile)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert inart(words) == 130
    finally:
        signal.signal(signal.SIGINT, before)


HANGUP = """
import os, signal, threading
from controlplane.service.serving import EndSignal

def reload():
    print("reloaded", flush=True)
    os.kill(os.getpid(), again.pop(0))

again = [signal.SIGHUP, signal.SIGTERM]
end = EndSignal(reload)
os.kill(os.getpid(), signal.SIGHUP)
end.wait()
print("ended")
"""


def test_a_hangup_is_answered_and_does_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", HANGUP], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("reloaded\nreloaded\nended\n", 0), done.stderr
