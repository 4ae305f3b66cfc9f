"""Holds a job in the network: adds it, and removes it when standard input ends.

It is a process of its own in a session of its own, so that the job goes also when the launcher is killed: the launcher
holds the other end of standard input. Its first line is an AddJobRequest in JSON; the answer is a line of JSON on
standard output. Its certificate is that of $INART_CREDENTIALS.

python -m worker_agent.launch.holder HOST:PORT
"""

from __future__ import annotations

import json
import signal
import sys
import time

from google.protobuf import json_format

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import REPLAN_SECONDS, ControllerError, ask, fetch_status
from worker_agent.launch.adding import add

REMOVE_SECONDS = 60.0
"""Seconds for which a controller that does not answer is tried when the job is to be removed."""
RETRY_SECONDS = 2.0


def hold(controller: str) -> int:
    """Hold the job of standard input's first line, as the module describes, and return the exit status."""
    request = json_format.Parse(sys.stdin.readline(), pb.AddJobRequest())
    try:
        reply = add(controller, _name(request), request)
    except ControllerError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    try:
        print(json_format.MessageToJson(reply, preserving_proto_field_name=True, indent=None), flush=True)
        sys.stdin.read()
    except OSError:  # The launcher is gone, and its pipes with it.
        pass
    return remove(controller, reply.name)


def _name(request: pb.AddJobRequest) -> str:
    """Return the name of the job, from the request's words; "" where they are not well formed, which the controller
    then says.
    """
    return next((word.removeprefix("name=") for word in request.job.split(",") if word.startswith("name=")), "")


def remove(controller: str, name: str) -> int:
    """Remove the job, also where the controller comes back only after a while, and return the exit status."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            ask(controller, "remove_job", pb.RemoveJobRequest(name=name), timeout=REPLAN_SECONDS)
            return 0
        except ControllerError as error:
            if _is_gone(controller, name):
                return 0
            if time.monotonic() > deadline:
                words = f"job {name} was not removed: {error}; remove it with `inart job remove {name}`"
                print(f"inart run: {words}", file=sys.stderr, flush=True)
                return 1
        time.sleep(RETRY_SECONDS)


def _is_gone(controller: str, name: str) -> bool:
    """Return whether the controller answers and has no such job, because somebody else has removed it."""
    try:
        return all(job.name != name for job in fetch_status(controller).jobs)
    except ControllerError:
        return False


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The launcher gets these, and ends standard input.
    sys.exit(hold(sys.argv[1]))
