from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Abort(_message.Message):
    __slots__ = ["nodes", "reason"]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, reason: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class AgentStatus(_message.Message):
    __slots__ = ["joined", "joined_seconds", "node", "peer", "reported_seconds", "role", "statistics"]
    class StatisticsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOINED_FIELD_NUMBER: _ClassVar[int]
    JOINED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REPORTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    joined: bool
    joined_seconds: float
    node: str
    peer: str
    reported_seconds: float
    role: str
    statistics: _containers.ScalarMap[str, float]
    def __init__(self, node: _Optional[str] = ..., role: _Optional[str] = ..., joined: bool = ..., peer: _Optional[str] = ..., joined_seconds: _Optional[float] = ..., statistics: _Optional[_Mapping[str, float]] = ..., reported_seconds: _Optional[float] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ["agent_config", "digest"]
    AGENT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    agent_config: str
    digest: str
    def __init__(self, agent_config: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ["abort", "configuration", "refused", "waiting"]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    abort: Abort
    configuration: Configuration
    refused: Refused
    waiting: Waiting
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ["addresses", "agent", "node", "role", "running_digest", "running_epoch", "version"]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RUNNING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    agent: str
    node: str
    role: str
    running_digest: str
    running_epoch: int
    version: int
    def __init__(self, node: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., role: _Optional[str] = ..., version: _Optional[int] = ..., running_epoch: _Optional[int] = ..., running_digest: _Optional[str] = ..., agent: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ["agent", "failure"]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    failure: str
    def __init__(self, agent: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ["reason"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ["epoch", "node", "statistics", "trees"]
    class StatisticsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    node: str
    statistics: _containers.ScalarMap[str, float]
    trees: _containers.RepeatedCompositeFieldContainer[TreeReport]
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[int] = ..., statistics: _Optional[_Mapping[str, float]] = ..., trees: _Optional[_Iterable[_Union[TreeReport, _Mapping]]] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ["agents", "epoch", "job", "planned_rate_mbps", "state", "strategy", "switches", "trees"]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLANNED_RATE_MBPS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[AgentStatus]
    epoch: int
    job: str
    planned_rate_mbps: float
    state: str
    strategy: str
    switches: _containers.RepeatedCompositeFieldContainer[SwitchStatus]
    trees: _containers.RepeatedCompositeFieldContainer[TreeStatus]
    def __init__(self, job: _Optional[str] = ..., strategy: _Optional[str] = ..., planned_rate_mbps: _Optional[float] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., agents: _Optional[_Iterable[_Union[AgentStatus, _Mapping]]] = ..., switches: _Optional[_Iterable[_Union[SwitchStatus, _Mapping]]] = ..., trees: _Optional[_Iterable[_Union[TreeStatus, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class SwitchStatus(_message.Message):
    __slots__ = ["address", "groups", "labels", "name", "problem", "refills", "routes", "state", "verdicts"]
    class VerdictsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REFILLS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    address: str
    groups: int
    labels: int
    name: str
    problem: str
    refills: int
    routes: int
    state: str
    verdicts: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., problem: _Optional[str] = ..., labels: _Optional[int] = ..., groups: _Optional[int] = ..., routes: _Optional[int] = ..., refills: _Optional[int] = ..., verdicts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class TreeReport(_message.Message):
    __slots__ = ["missing", "oldest_chunk", "tree", "waiting_seconds"]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[str]
    oldest_chunk: int
    tree: int
    waiting_seconds: float
    def __init__(self, tree: _Optional[int] = ..., oldest_chunk: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ..., waiting_seconds: _Optional[float] = ...) -> None: ...

class TreeStatus(_message.Message):
    __slots__ = ["missing", "oldest_chunk", "root", "tree", "waiting_seconds"]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[str]
    oldest_chunk: int
    root: str
    tree: int
    waiting_seconds: float
    def __init__(self, tree: _Optional[int] = ..., root: _Optional[str] = ..., oldest_chunk: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ..., waiting_seconds: _Optional[float] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ["missing"]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, missing: _Optional[_Iterable[str]] = ...) -> None: ...
