"""Joining, starting, stopping: the agents of a job without any network."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core.state import Refused
from controlplane.service.epochs import LAST_EPOCH, EpochStore
from controlplane.service.hanging import SILENT_AT_FIRST_SECONDS, SILENT_ROUNDS, SILENT_SECONDS
from controlplane.service.members import Member
from controlplane.service.roster import Roster, Rules
from p4src.protocol import ENCODING
from tests.deploy.job import configs


@pytest.fixture
def roster(tmp_path):
    made = Roster(configs(), EpochStore(tmp_path), Rules(ENCODING, grace=0.05, patience=0.05))
    yield made
    made.close()


def request(node: str, /, **changes) -> pb.JoinRequest:
    role = "parameter_server" if node.startswith("ps") else "worker"
    return pb.JoinRequest(**{"node": node, "role": role, "version": ENCODING, "agent": f"agent-{node}"} | changes)


def join_all(roster: Roster) -> dict[str, Member]:
    return {node: roster.join(request(node)) for node in roster.configs}


def events(member: Member) -> list[pb.Event]:
    found = []
    while not member.events.empty():
        event = member.events.get()
        if event is not None:
            found.append(event)
    return found


def kinds(member: Member) -> list[str]:
    return [event.WhichOneof("kind") or "" for event in events(member)]


def configuration(member: Member) -> AgentConfig:
    last = [event for event in events(member) if event.HasField("configuration")][-1]
    return AgentConfig.from_json(last.configuration.agent_config)


def test_configuration_comes_when_all_are_there(roster):
    first = roster.join(request("w1"))
    assert [list(event.waiting.missing) for event in events(first)] == [["w2", "ps1"]]
    second = roster.join(request("ps1"))
    assert [list(event.waiting.missing) for event in events(first)] == [["w2"]]
    third = roster.join(request("w2"))
    epochs = set()
    for member in (first, second, third):
        config = configuration(member)
        assert config == replace(roster.configs[member.node], epoch=config.epoch, key=config.key)
        assert len(bytes.fromhex(config.key)) == 16 and config.key not in repr(config), "a secret of the epoch"
        epochs.add(config.epoch)
    assert epochs == {roster.epoch}
    assert roster.status().state == "running"


def test_an_agent_refused_because_no_epoch_can_begin_is_not_joined(roster, monkeypatch):
    """The disk is full when the last agent joins: its connection ends with the reason, and the job must not take it for
    joined.
    """
    roster.join(request("w1"))
    roster.join(request("ps1"))

    def full(store: EpochStore) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(EpochStore, "next", full)
        with pytest.raises(OSError, match="No space left"):
            roster.join(request("w2"))
    assert roster.status().state == "waiting" and "w2" not in roster.members()
    assert configuration(roster.join(request("w2", agent="the next process"))).epoch == roster.epoch


def test_agent_that_gives_up_tells_the_others_why(roster):
    members = join_all(roster)
    for member in members.values():
        events(member)
    roster.announce_leave("agent-w1", "no progress on tree 0")
    roster.leave(members["w1"])
    assert events(members["w2"])[0].abort.reason == "w1 gave up: no progress on tree 0"


def test_next_run_may_start_before_the_grace_of_the_last_one_ends(tmp_path):
    roster = Roster(configs(), EpochStore(tmp_path), Rules(ENCODING, grace=60))
    members = join_all(roster)
    before = roster.epoch
    for node in ("w1", "w2"):
        roster.announce_leave(f"agent-{node}")
        roster.leave(members[node])
    events(members["ps1"])
    again = [roster.join(request(node)) for node in ("w1", "w2")]
    assert configuration(again[0]).epoch == configuration(members["ps1"]).epoch > before
    roster.close()


def test_the_refusal_of_a_nodes_second_process_says_how_to_take_over(roster):
    members = join_all(roster)
    for member in members.values():
        events(member)
    second = request("w1", agent="second", process="process 4711 on b")
    assert "w1 has joined already" in roster.in_use(second)
    with pytest.raises(Refused, match=r"w1 has joined already, as another process .*take its place \(--take-over"):
        roster.join(second)
    assert kinds(members["w1"]) == kinds(members["w2"]) == [], "nobody was disturbed"


def test_a_second_process_gets_the_node_once_the_first_has_ended(roster):
    """After a crash the first connection may look alive for a while."""
    roster.patience = 60.0
    members = join_all(roster)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(roster.join, request("w1", agent="second"))
        roster.leave(members["w1"])
        assert configuration(second.result(60)).node == "w1"


def test_second_process_for_a_node_takes_over_when_it_says_so(roster):
    members = join_all(roster)
    for member in members.values():
        events(member)
    second = request("w1", agent="second", process="process 4711 on b", take_over=True)
    assert roster.in_use(second) == ""
    again = roster.join(second, "ipv4:10.0.0.9:1234")
    refused = events(members["w1"])[0].refused
    assert "process 4711 on b (from ipv4:10.0.0.9:1234) has taken the place of w1" in refused.reason
    assert kinds(members["w2"]) == ["abort", "configuration"]
    assert configuration(again).node == "w1"
    # The end of the first connection's stream, which comes later, is not the loss of the second.
    roster.leave(members["w1"])
    assert roster.status().state == "running"


def test_agents_are_found_by_address(roster):
    member = roster.join(request("", addresses=["172.31.0.2", "10.0.0.2"]))
    assert member.node == "w2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node": "w7"}, "'w7' is not a node of this job; its nodes are w1, w2, ps1"),
        ({"node": "", "addresses": ["192.0.2.1"]}, "no node of the job at the agent's addresses .192.0.2.1."),
        ({"node": "", "addresses": ["10.0.0.1", "10.0.0.2"]}, "several nodes of the job .*Give the name with --node"),
        ({"role": "parameter_server"}, "w1 is a worker of this job, not a parameter server"),
        ({"version": ENCODING + 1}, "install the same version"),
    ],
)
def test_wrong_agents_are_refused_with_the_reason(roster, changes, message):
    with pytest.raises(Refused, match=message):
        roster.join(request("w1", **changes))
    assert not roster.members()


def test_a_restarted_controller_adopts_the_running_job(tmp_path, roster):
    join_all(roster)
    running = {node: (roster.epoch, config.digest) for node, config in roster.configs.items()}
    later = Roster(configs(), EpochStore(tmp_path / "other"), Rules(ENCODING))
    for node, (epoch, digest) in running.items():
        member = later.join(request(node, running_epoch=epoch, running_digest=digest))
    assert configuration(member).epoch == roster.epoch
    # Later epochs are larger, although this controller's own file did not have that epoch.
    later.leave(member)
    member = later.join(request(member.node))
    assert configuration(member).epoch > roster.epoch
    later.close()


def test_restarted_controller_begins_anew_when_the_plan_changed(tmp_path, roster):
    join_all(roster)
    later = Roster(configs("10.0.0.9"), EpochStore(tmp_path), Rules(ENCODING))
    for node, config in roster.configs.items():
        later.join(request(node, running_epoch=roster.epoch, running_digest=config.digest))
    assert later.epoch > roster.epoch
    later.close()


def test_status_says_whose_contribution_is_missing(roster):
    join_all(roster)
    report = pb.ReportRequest(node="ps1", epoch=roster.epoch, statistics={"packets_received": 7})
    report.trees.add(tree=0, oldest_chunk=41, missing=["w2"], waiting_seconds=1.5)
    roster.report(report)
    status = roster.status()
    tree = status.trees[0]
    assert (tree.root, tree.oldest_chunk, list(tree.missing)) == ("ps1", 41, ["w2"])
    server = next(agent for agent in status.agents if agent.node == "ps1")
    assert server.statistics["packets_received"] == 7


def test_reports_of_an_earlier_epoch_do_not_count(roster):
    join_all(roster)
    roster.report(pb.ReportRequest(node="w1", epoch=roster.epoch - 1, statistics={"packets_sent": 7}))
    assert not next(agent for agent in roster.status().agents if agent.node == "w1").statistics


def test_epochs_increase_even_with_a_wrong_clock_and_a_lost_file(tmp_path, monkeypatch):
    clock = [1_000_000.0]
    monkeypatch.setattr("controlplane.service.epochs.time.time", lambda: clock[0])
    store = EpochStore(tmp_path / "state")
    assert [store.next(), store.next()] == [1_000_000, 1_000_001]
    clock[0] = 500.0  # The clock went back.
    assert EpochStore(tmp_path / "state").next() == 1_000_002
    (tmp_path / "state" / "epoch").unlink()  # The file was lost, and the clock is right.
    clock[0] = 2_000_000.0
    assert store.next() == 2_000_000
    store.adopt(3_000_000)
    assert store.next() == 3_000_001


def test_a_folder_that_cannot_be_written_is_named_with_the_option():
    with pytest.raises(OSError, match=r"kept in /proc/none: .*; another place: --state DIR"):
        EpochStore(Path("/proc/none")).check()


def test_epoch_file_that_is_something_else(tmp_path):
    (tmp_path / "epoch").write_text("hello")
    with pytest.raises(OSError, match="does not hold an epoch"):
        EpochStore(tmp_path).next()
    (tmp_path / "epoch").write_text(str(LAST_EPOCH))
    with pytest.raises(OSError, match="is the clock right"):
        EpochStore(tmp_path).next()


def test_parameter_server_that_hangs_is_out_and_a_worker_is_waited_for(roster):
    members = join_all(roster)
    for node in members:
        roster.report(pb.ReportRequest(node=node, epoch=roster.epoch))
    for node in ("ps1", "w2"):
        assert members[node].reported is not None
        members[node].reported -= SILENT_SECONDS + 1
    for _ in range(SILENT_ROUNDS + 1):
        assert roster.running, "one report after a pause of the controller tells nothing"
        roster.report(pb.ReportRequest(node="w1", epoch=roster.epoch))
    assert roster.running, "no worker waits for it: only its connection to the controller may be lost"
    trees = [
        pb.TreeReport(tree=tree.tree, oldest_chunk=7, waiting_seconds=SILENT_SECONDS + 1)
        for tree in roster.configs["ps1"].root_trees
    ]
    roster.report(pb.ReportRequest(node="w1", epoch=roster.epoch, trees=trees))
    assert not roster.running
    assert set(roster.members()) == {"w1", "w2"}
    (abort,) = [event.abort for event in events(members["w1"]) if event.HasField("abort")]
    assert "ps1 is gone (no report for 11 s: it hangs)" in abort.reason
    # Its stream has ended, so it joins again when it continues.
    last = None
    while not members["ps1"].events.empty():
        last = members["ps1"].events.get()
    assert last is None
    roster.join(request("ps1", agent="again"))
    assert roster.running


def test_parameter_server_that_hangs_before_its_first_report_is_out_too(roster):
    members = join_all(roster)
    members["ps1"].began -= SILENT_SECONDS + 1
    for _ in range(SILENT_ROUNDS):
        roster.report(pb.ReportRequest(node="w1", epoch=roster.epoch))
    assert roster.running, "it may still be making ready"
    members["ps1"].began -= SILENT_AT_FIRST_SECONDS
    roster.report(pb.ReportRequest(node="w1", epoch=roster.epoch))
    assert not roster.running
    assert set(roster.members()) == {"w1", "w2"}


def two_roots() -> dict[str, AgentConfig]:
    """Return the small job with a second parameter server."""
    found = configs()
    own = tuple(replace(tree, tree=1) for tree in found["ps1"].root_trees)
    found["ps2"] = replace(found["ps1"], node="ps2", index=1, address="10.0.0.9", root_trees=own)
    return {node: replace(config, parameter_servers=("ps1", "ps2")) for node, config in found.items()}


@pytest.fixture
def pair(tmp_path):
    """Return a roster that continues without one of two parameter servers, and the agents that were reported lost."""
    lost: list[str] = []
    made = Roster(
        two_roots(),
        EpochStore(tmp_path),
        Rules(ENCODING, least_workers=2),
        on_lost=lambda node, reason: lost.append(node),
    )
    members = join_all(made)
    for member in members.values():
        events(member)
    yield made, members, lost
    made.close()


def says(roster: Roster, member: Member, ago: float, tree: int | None = None) -> None:
    """An agent's report that came so many seconds ago. tree: one that makes no progress."""
    request = pb.ReportRequest(node=member.node, epoch=roster.epoch)
    if tree is not None:
        request.trees.add(tree=tree, oldest_chunk=3, waiting_seconds=0.6)
    roster.report(request)
    assert member.reported is not None
    member.reported -= ago


@pytest.mark.parametrize(
    "what",
    [
        "hangs", "hangs at first", "making ready", "rank is late", "busy", "paused", "has just begun to be waited for",
        "last",
    ],
)  # fmt: skip
def test_parameter_server_that_workers_wait_for_and_that_says_nothing_is_out_at_once(pair, what, monkeypatch):
    """Not: one that says that it waits, too (a rank is late); where others are as late (a busy machine); after a pause
    of the controller; at once; nor the last one."""
    roster, members, lost = pair
    if what == "last":
        roster.leave(members["ps2"])
        lost.clear()
    monkeypatch.setattr("controlplane.service.hanging.PAUSED_SECONDS", 0.0 if what == "paused" else 60.0)
    monkeypatch.setattr("controlplane.service.hanging.WAITED_SECONDS", 60.0 if what.startswith("has just") else 0.0)
    roster.look_for_hanging()
    for node in members:
        if node in roster.members():
            if node == "ps1" and what in ("hangs at first", "making ready"):
                members[node].began -= 3.5 if what == "hangs at first" else 3.0
            else:
                says(roster, members[node], 0.0 if node != "ps1" else 1.5)
    roster.look_for_hanging()
    assert not lost, "nobody waits for it"
    says(roster, members["w1"], 0.0, tree=0)
    if what == "rank is late":
        says(roster, members["ps1"], 0.0, tree=0)
    if what == "busy":
        says(roster, members["w2"], 1.5)
    roster.look_for_hanging()
    assert lost == (["ps1"] if what.startswith("hangs") else [])
    assert roster.running


def without(node: str) -> dict[str, AgentConfig]:
    return {one: config for one, config in two_roots().items() if one != node}


def test_a_process_that_returns_before_the_others_continue_waits(pair):
    roster, members, _ = pair
    roster.leave(members["ps1"])
    back = roster.join(request("ps1"))
    assert kinds(back) == ["waiting"]
    assert kinds(members["w1"]) == []
    roster.give_up("no room")
    assert kinds(members["w1"]) == ["abort", "configuration"], "it is there, so all begin anew at once"
    assert kinds(back) == ["configuration"]


def test_worker_that_is_lost_stops_the_others_also_while_a_server_is_being_replaced(pair):
    roster, members, _ = pair
    roster.leave(members["ps1"])
    roster.leave(members["w2"])
    assert "abort" in kinds(members["w1"])
    assert not roster.running
    assert roster.plan.exchange(without("ps1"))
    again = roster.join(request("w2"))
    assert configuration(again).epoch == roster.epoch
    assert roster.status().state == "running"


def test_refusals_of_the_check_word_name_their_sender(tmp_path):
    said = []
    roster = Roster(configs(), EpochStore(tmp_path), Rules(ENCODING), calling(said.append))
    members = [roster.join(request(node)) for node in ("w1", "w2", "ps1")]
    epoch = configuration(members[0]).epoch

    def report(**statistics):
        roster.report(pb.ReportRequest(node="ps1", epoch=epoch, statistics=statistics))
        return [line for line in said if "refused" in line]

    assert report(packets_received=5.0) == []
    wrong = {"refused_by_the_check": 3.0, "refused_by_the_check of w1": 2.0}
    assert report(**wrong) == [
        "ps1 refused 3 sums or packets that were not what the workers had sent (2 of w1): something between them "
        "changes or forges packets"
    ]
    assert len(report(**wrong)) == 1, "nothing new, nothing said"


def test_agents_that_have_lost_the_controller_go_on_until_others_wait_for_them(roster):
    """Their connections end 5 to 10 s after their last report, while the data network is intact."""
    members = join_all(roster)
    for member in members.values():
        member.reported = time.monotonic() - 9.0
    epoch = roster.epoch
    for node in ("w1", "ps1"):
        roster.leave(members[node])
    assert roster.running and set(roster.members()) == {"w2"} and kinds(members["w2"])[-1] == "configuration"
    running = {"running_epoch": epoch, "running_digest": roster.configs["ps1"].digest}
    members["ps1"] = roster.join(request("ps1", **running))
    assert configuration(members["ps1"]).epoch == epoch
    trees = [pb.TreeReport(tree=tree.tree, oldest_chunk=7, waiting_seconds=12.0, missing=["w1"])
             for tree in roster.configs["ps1"].root_trees]  # fmt: skip
    waits = pb.ReportRequest(node="ps1", epoch=epoch, trees=trees)
    for _ in range(2):
        roster.report(waits)
    assert roster.running, "w1 has not been away for as long"
    roster._effects.state = replace(
        roster.state,
        nodes=roster.state.nodes | {"w1": replace(roster.state.nodes["w1"], since=time.monotonic() - 11.0)},
    )
    roster.report(waits)
    (abort,) = [event.abort for event in events(members["w2"]) if event.HasField("abort")]
    assert abort.reason == "w1 is gone (no report for 11 s: the others wait for it)"


class SlowStore(EpochStore):
    """A store that answers when the test lets it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.answers = threading.Event(), threading.Event()

    def next(self) -> int:
        self.asked.set()
        assert self.answers.wait(60.0)
        return super().next()


@pytest.mark.parametrize("outcome", ["stored", "not stored"])
def test_a_store_that_answers_late_delays_no_one_but_the_agent_that_joins(tmp_path, outcome):
    """The lock of the roster is free meanwhile. What happens meanwhile is decided afterwards."""
    store = SlowStore(tmp_path)
    if outcome == "not stored":
        store._advance = lambda rule: exec('raise OSError("the disk is full")')
    roster = Roster(configs(), store, Rules(ENCODING, grace=60))
    with ThreadPoolExecutor(2) as pool:
        try:
            first, second = roster.join(request("w1")), roster.join(request("ps1"))
            third = pool.submit(roster.join, request("w2"))
            assert store.asked.wait(60.0)

            def meanwhile() -> str:
                roster.report(pb.ReportRequest(node="w1", epoch=1))
                roster.look_for_hanging()
                roster.leave(first)
                return roster.status().state

            assert pool.submit(meanwhile).result(60.0) == "waiting"
            assert not third.done()
        finally:
            store.answers.set()
        if outcome == "stored":
            assert third.result(60.0).node == "w2"
            assert kinds(second)[-3:] == ["configuration", "abort", "waiting"], "w1 has left since"
        else:
            with pytest.raises(OSError, match="full"):
                third.result(60.0)
        assert set(roster.members()) == ({"w2", "ps1"} if outcome == "stored" else {"ps1"})
    roster.close()
