from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
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

class AddJobReply(_message.Message):
    __slots__ = ["bottleneck", "changes", "entries", "job_id", "name", "note", "others", "parameter_servers", "plan", "rate_mbps", "workers"]
    BOTTLENECK_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVERS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RATE_MBPS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    bottleneck: str
    changes: _containers.RepeatedCompositeFieldContainer[EntryChange]
    entries: int
    job_id: int
    name: str
    note: str
    others: _containers.RepeatedCompositeFieldContainer[JobRate]
    parameter_servers: _containers.RepeatedScalarFieldContainer[str]
    plan: str
    rate_mbps: float
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., job_id: _Optional[int] = ..., rate_mbps: _Optional[float] = ..., bottleneck: _Optional[str] = ..., others: _Optional[_Iterable[_Union[JobRate, _Mapping]]] = ..., entries: _Optional[int] = ..., plan: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ..., parameter_servers: _Optional[_Iterable[str]] = ..., changes: _Optional[_Iterable[_Union[EntryChange, _Mapping]]] = ..., note: _Optional[str] = ...) -> None: ...

class AddJobRequest(_message.Message):
    __slots__ = ["dry_run", "guarantee_mbps", "hosts", "job", "plan", "priority", "seed", "share", "strategy", "tenant", "weight"]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    GUARANTEE_MBPS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    guarantee_mbps: float
    hosts: _containers.RepeatedCompositeFieldContainer[Host]
    job: str
    plan: str
    priority: int
    seed: int
    share: bool
    strategy: str
    tenant: str
    weight: float
    def __init__(self, job: _Optional[str] = ..., strategy: _Optional[str] = ..., seed: _Optional[int] = ..., plan: _Optional[str] = ..., dry_run: bool = ..., share: bool = ..., weight: _Optional[float] = ..., guarantee_mbps: _Optional[float] = ..., priority: _Optional[int] = ..., hosts: _Optional[_Iterable[_Union[Host, _Mapping]]] = ..., tenant: _Optional[str] = ...) -> None: ...

class AgentStatus(_message.Message):
    __slots__ = ["host_ms", "joined", "joined_seconds", "node", "peer", "reported_seconds", "role", "statistics"]
    class StatisticsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    HOST_MS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    JOINED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REPORTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    host_ms: float
    joined: bool
    joined_seconds: float
    node: str
    peer: str
    reported_seconds: float
    role: str
    statistics: _containers.ScalarMap[str, float]
    def __init__(self, node: _Optional[str] = ..., role: _Optional[str] = ..., joined: bool = ..., peer: _Optional[str] = ..., joined_seconds: _Optional[float] = ..., statistics: _Optional[_Mapping[str, float]] = ..., reported_seconds: _Optional[float] = ..., host_ms: _Optional[float] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ["agent_config", "digest"]
    AGENT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    agent_config: str
    digest: str
    def __init__(self, agent_config: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class EntryChange(_message.Message):
    __slots__ = ["entry", "operation", "switch"]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    entry: str
    operation: str
    switch: str
    def __init__(self, switch: _Optional[str] = ..., operation: _Optional[str] = ..., entry: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ["abort", "configuration", "prepare", "refused", "rerouted", "retire", "switch_over", "waiting", "withdraw"]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REROUTED_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    SWITCH_OVER_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    abort: Abort
    configuration: Configuration
    prepare: Prepare
    refused: Refused
    rerouted: Rerouted
    retire: Retire
    switch_over: SwitchOver
    waiting: Waiting
    withdraw: Withdraw
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., switch_over: _Optional[_Union[SwitchOver, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., retire: _Optional[_Union[Retire, _Mapping]] = ..., rerouted: _Optional[_Union[Rerouted, _Mapping]] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ["addresses", "name"]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    name: str
    def __init__(self, name: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class JobRate(_message.Message):
    __slots__ = ["after_mbps", "before_mbps", "name"]
    AFTER_MBPS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_MBPS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    after_mbps: float
    before_mbps: float
    name: str
    def __init__(self, name: _Optional[str] = ..., before_mbps: _Optional[float] = ..., after_mbps: _Optional[float] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ["agents", "bottleneck", "epoch", "job_id", "joined", "missing", "name", "plan_version", "planned_rate_mbps", "state", "strategy", "terms"]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    BOTTLENECK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLANNED_RATE_MBPS_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    agents: int
    bottleneck: str
    epoch: int
    job_id: int
    joined: int
    missing: _containers.RepeatedScalarFieldContainer[str]
    name: str
    plan_version: int
    planned_rate_mbps: float
    state: str
    strategy: str
    terms: str
    def __init__(self, name: _Optional[str] = ..., job_id: _Optional[int] = ..., strategy: _Optional[str] = ..., plan_version: _Optional[int] = ..., planned_rate_mbps: _Optional[float] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., joined: _Optional[int] = ..., agents: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ..., bottleneck: _Optional[str] = ..., terms: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ["addresses", "agent", "job", "node", "process", "role", "running_digest", "running_epoch", "take_over", "version"]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RUNNING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    agent: str
    job: str
    node: str
    process: str
    role: str
    running_digest: str
    running_epoch: int
    take_over: bool
    version: int
    def __init__(self, node: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., role: _Optional[str] = ..., version: _Optional[int] = ..., running_epoch: _Optional[int] = ..., running_digest: _Optional[str] = ..., agent: _Optional[str] = ..., job: _Optional[str] = ..., take_over: bool = ..., process: _Optional[str] = ...) -> None: ...

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

class LogEvent(_message.Message):
    __slots__ = ["text", "time"]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    text: str
    time: float
    def __init__(self, time: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ["by", "data", "job", "kind", "level", "number", "text", "time"]
    BY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    by: str
    data: str
    job: str
    kind: str
    level: str
    number: int
    text: str
    time: float
    def __init__(self, number: _Optional[int] = ..., time: _Optional[float] = ..., by: _Optional[str] = ..., job: _Optional[str] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., data: _Optional[str] = ..., level: _Optional[str] = ...) -> None: ...

class LogReply(_message.Message):
    __slots__ = ["more", "next", "records"]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    more: bool
    next: int
    records: _containers.RepeatedCompositeFieldContainer[LogRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[LogRecord, _Mapping]]] = ..., next: _Optional[int] = ..., more: bool = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ["after", "job", "most", "since"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    after: int
    job: str
    most: int
    since: float
    def __init__(self, since: _Optional[float] = ..., job: _Optional[str] = ..., after: _Optional[int] = ..., most: _Optional[int] = ...) -> None: ...

class OtherTraffic(_message.Message):
    __slots__ = ["bandwidth_mbps", "measured_mbps", "planned_mbps", "source", "target"]
    BANDWIDTH_MBPS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_MBPS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_MBPS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    bandwidth_mbps: float
    measured_mbps: float
    planned_mbps: float
    source: str
    target: str
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., measured_mbps: _Optional[float] = ..., planned_mbps: _Optional[float] = ..., bandwidth_mbps: _Optional[float] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ["again", "agent_config", "digest"]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    AGENT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    again: bool
    agent_config: str
    digest: str
    def __init__(self, agent_config: _Optional[str] = ..., digest: _Optional[str] = ..., again: bool = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ["reason"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ReloadReply(_message.Message):
    __slots__ = ["added", "changed", "changes", "entries", "removed", "summary"]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    added: _containers.RepeatedScalarFieldContainer[str]
    changed: _containers.RepeatedScalarFieldContainer[str]
    changes: _containers.RepeatedCompositeFieldContainer[EntryChange]
    entries: int
    removed: _containers.RepeatedScalarFieldContainer[str]
    summary: str
    def __init__(self, added: _Optional[_Iterable[str]] = ..., removed: _Optional[_Iterable[str]] = ..., changed: _Optional[_Iterable[str]] = ..., changes: _Optional[_Iterable[_Union[EntryChange, _Mapping]]] = ..., entries: _Optional[int] = ..., summary: _Optional[str] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ["dry_run"]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    def __init__(self, dry_run: bool = ...) -> None: ...

class RemoveJobReply(_message.Message):
    __slots__ = ["entries", "later", "others"]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    entries: int
    later: _containers.RepeatedScalarFieldContainer[str]
    others: _containers.RepeatedCompositeFieldContainer[JobRate]
    def __init__(self, entries: _Optional[int] = ..., later: _Optional[_Iterable[str]] = ..., others: _Optional[_Iterable[_Union[JobRate, _Mapping]]] = ...) -> None: ...

class RemoveJobRequest(_message.Message):
    __slots__ = ["name", "share"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    name: str
    share: bool
    def __init__(self, name: _Optional[str] = ..., share: bool = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ["certificate", "key"]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    key: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., key: _Optional[bytes] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ReplanReply(_message.Message):
    __slots__ = ["changes", "entries_added", "entries_removed", "epoch", "first_operation", "held_seconds", "outcome", "plan", "rate_before_mbps", "rate_mbps", "seconds", "trees_added", "trees_kept", "trees_removed", "version"]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_ADDED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_REMOVED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_OPERATION_FIELD_NUMBER: _ClassVar[int]
    HELD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RATE_BEFORE_MBPS_FIELD_NUMBER: _ClassVar[int]
    RATE_MBPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TREES_ADDED_FIELD_NUMBER: _ClassVar[int]
    TREES_KEPT_FIELD_NUMBER: _ClassVar[int]
    TREES_REMOVED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[EntryChange]
    entries_added: int
    entries_removed: int
    epoch: int
    first_operation: int
    held_seconds: float
    outcome: str
    plan: str
    rate_before_mbps: float
    rate_mbps: float
    seconds: float
    trees_added: int
    trees_kept: int
    trees_removed: int
    version: int
    def __init__(self, rate_before_mbps: _Optional[float] = ..., rate_mbps: _Optional[float] = ..., version: _Optional[int] = ..., trees_kept: _Optional[int] = ..., trees_removed: _Optional[int] = ..., trees_added: _Optional[int] = ..., entries_added: _Optional[int] = ..., entries_removed: _Optional[int] = ..., epoch: _Optional[int] = ..., first_operation: _Optional[int] = ..., held_seconds: _Optional[float] = ..., seconds: _Optional[float] = ..., plan: _Optional[str] = ..., outcome: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[EntryChange, _Mapping]]] = ...) -> None: ...

class ReplanRequest(_message.Message):
    __slots__ = ["changes", "dry_run", "job", "restored", "soon", "strategy", "topology", "without"]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    SOON_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    job: str
    restored: _containers.RepeatedScalarFieldContainer[str]
    soon: bool
    strategy: str
    topology: str
    without: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topology: _Optional[str] = ..., changes: _Optional[_Iterable[str]] = ..., without: _Optional[_Iterable[str]] = ..., strategy: _Optional[str] = ..., dry_run: bool = ..., job: _Optional[str] = ..., restored: _Optional[_Iterable[str]] = ..., soon: bool = ...) -> None: ...

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

class Rerouted(_message.Message):
    __slots__ = ["trees"]
    class Tree(_message.Message):
        __slots__ = ["contributions", "label", "link", "rate_mbps", "results"]
        CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
        LABEL_FIELD_NUMBER: _ClassVar[int]
        LINK_FIELD_NUMBER: _ClassVar[int]
        RATE_MBPS_FIELD_NUMBER: _ClassVar[int]
        RESULTS_FIELD_NUMBER: _ClassVar[int]
        contributions: bool
        label: int
        link: int
        rate_mbps: float
        results: bool
        def __init__(self, label: _Optional[int] = ..., rate_mbps: _Optional[float] = ..., contributions: bool = ..., results: bool = ..., link: _Optional[int] = ...) -> None: ...
    TREES_FIELD_NUMBER: _ClassVar[int]
    trees: _containers.RepeatedCompositeFieldContainer[Rerouted.Tree]
    def __init__(self, trees: _Optional[_Iterable[_Union[Rerouted.Tree, _Mapping]]] = ...) -> None: ...

class Retire(_message.Message):
    __slots__ = ["epoch"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ["agents", "epoch", "events", "job", "jobs", "node", "others", "plan_version", "planned_rate_mbps", "state", "strategy", "switches", "tenants", "trees", "update", "uses", "without"]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_RATE_MBPS_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[AgentStatus]
    epoch: int
    events: _containers.RepeatedCompositeFieldContainer[LogEvent]
    job: str
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    node: str
    others: _containers.RepeatedCompositeFieldContainer[OtherTraffic]
    plan_version: int
    planned_rate_mbps: float
    state: str
    strategy: str
    switches: _containers.RepeatedCompositeFieldContainer[SwitchStatus]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    trees: _containers.RepeatedCompositeFieldContainer[TreeStatus]
    update: str
    uses: _containers.RepeatedCompositeFieldContainer[Use]
    without: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., strategy: _Optional[str] = ..., planned_rate_mbps: _Optional[float] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., agents: _Optional[_Iterable[_Union[AgentStatus, _Mapping]]] = ..., switches: _Optional[_Iterable[_Union[SwitchStatus, _Mapping]]] = ..., trees: _Optional[_Iterable[_Union[TreeStatus, _Mapping]]] = ..., plan_version: _Optional[int] = ..., update: _Optional[str] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[LogEvent, _Mapping]]] = ..., without: _Optional[_Iterable[str]] = ..., node: _Optional[str] = ..., uses: _Optional[_Iterable[_Union[Use, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ..., others: _Optional[_Iterable[_Union[OtherTraffic, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ["addresses", "job", "parts"]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    job: str
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[str]] = ...) -> None: ...

class SwitchOver(_message.Message):
    __slots__ = ["epoch", "first_operation", "given"]
    class GivenEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_OPERATION_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first_operation: int
    given: _containers.ScalarMap[int, int]
    def __init__(self, epoch: _Optional[int] = ..., first_operation: _Optional[int] = ..., given: _Optional[_Mapping[int, int]] = ...) -> None: ...

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

class TenantStatus(_message.Message):
    __slots__ = ["entries", "jobs", "name", "quota", "rate_mbps", "slots"]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    RATE_MBPS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    entries: int
    jobs: int
    name: str
    quota: str
    rate_mbps: float
    slots: int
    def __init__(self, name: _Optional[str] = ..., jobs: _Optional[int] = ..., rate_mbps: _Optional[float] = ..., entries: _Optional[int] = ..., slots: _Optional[int] = ..., quota: _Optional[str] = ...) -> None: ...

class TreeReport(_message.Message):
    __slots__ = ["answered_bytes", "busy_seconds", "missing", "oldest_chunk", "round_trip_seconds", "tree", "waiting_seconds"]
    ANSWERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    answered_bytes: int
    busy_seconds: float
    missing: _containers.RepeatedScalarFieldContainer[str]
    oldest_chunk: int
    round_trip_seconds: float
    tree: int
    waiting_seconds: float
    def __init__(self, tree: _Optional[int] = ..., oldest_chunk: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ..., waiting_seconds: _Optional[float] = ..., busy_seconds: _Optional[float] = ..., answered_bytes: _Optional[int] = ..., round_trip_seconds: _Optional[float] = ...) -> None: ...

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

class UpdateReport(_message.Message):
    __slots__ = ["agent", "done", "epoch", "failure", "next_operation", "repeated_bytes", "repeated_operations", "stage"]
    class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    AGENT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DRAINED: UpdateReport.Stage
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    NEXT_OPERATION_FIELD_NUMBER: _ClassVar[int]
    PREPARED: UpdateReport.Stage
    REPEATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPEATED_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    agent: str
    done: _containers.RepeatedScalarFieldContainer[int]
    epoch: int
    failure: str
    next_operation: int
    repeated_bytes: int
    repeated_operations: int
    stage: UpdateReport.Stage
    def __init__(self, agent: _Optional[str] = ..., epoch: _Optional[int] = ..., stage: _Optional[_Union[UpdateReport.Stage, str]] = ..., next_operation: _Optional[int] = ..., failure: _Optional[str] = ..., repeated_operations: _Optional[int] = ..., repeated_bytes: _Optional[int] = ..., done: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdateReportReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Use(_message.Message):
    __slots__ = ["fixed", "how", "job", "part"]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    fixed: str
    how: str
    job: str
    part: str
    def __init__(self, part: _Optional[str] = ..., job: _Optional[str] = ..., how: _Optional[str] = ..., fixed: _Optional[str] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ["missing", "reason"]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, missing: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ["epoch", "reason"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
