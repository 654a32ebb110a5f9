from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromNode(_message.Message):
    __slots__ = ("n", "holds_leases", "wants_sign", "hello", "report", "beat", "leave", "drain", "away", "resubmission", "again")
    N_FIELD_NUMBER: _ClassVar[int]
    HOLDS_LEASES_FIELD_NUMBER: _ClassVar[int]
    WANTS_SIGN_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    RESUBMISSION_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    n: int
    holds_leases: bool
    wants_sign: bool
    hello: Hello
    report: Report
    beat: Beat
    leave: Leave
    drain: Drain
    away: Away
    resubmission: Resubmission
    again: Again
    def __init__(self, n: _Optional[int] = ..., holds_leases: bool = ..., wants_sign: bool = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., away: _Optional[_Union[Away, _Mapping]] = ..., resubmission: _Optional[_Union[Resubmission, _Mapping]] = ..., again: _Optional[_Union[Again, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("machine_id", "boot_id", "version", "protocol", "capacity", "labels", "epoch_seen", "inventory", "drain", "session")
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SEEN_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    machine_id: str
    boot_id: str
    version: str
    protocol: int
    capacity: _containers.ScalarMap[str, int]
    labels: _containers.ScalarMap[str, str]
    epoch_seen: int
    inventory: _containers.RepeatedCompositeFieldContainer[JobClaims]
    drain: Drain
    session: int
    def __init__(self, machine_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., capacity: _Optional[_Mapping[str, int]] = ..., labels: _Optional[_Mapping[str, str]] = ..., epoch_seen: _Optional[int] = ..., inventory: _Optional[_Iterable[_Union[JobClaims, _Mapping]]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., session: _Optional[int] = ...) -> None: ...

class Resubmission(_message.Message):
    __slots__ = ("job", "record")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    job: str
    record: bytes
    def __init__(self, job: _Optional[str] = ..., record: _Optional[bytes] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: Load
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Away(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Again(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason", "within_ms", "moves", "over")
    REASON_FIELD_NUMBER: _ClassVar[int]
    WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    within_ms: int
    moves: bool
    over: bool
    def __init__(self, reason: _Optional[str] = ..., within_ms: _Optional[int] = ..., moves: bool = ..., over: bool = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("jobs", "load")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobClaims]
    load: Load
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobClaims, _Mapping]]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class JobClaims(_message.Message):
    __slots__ = ("job", "index", "attempt", "said", "exit_code", "signal", "started_at_ms", "ended_at_ms", "ran_us", "cpu_us", "peak_kib", "reasons", "steps", "causes", "lives", "handles", "gpus", "versions")
    class ReasonsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class StepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: StepMarks
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[StepMarks, _Mapping]] = ...) -> None: ...
    class CausesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class LivesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Life
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Life, _Mapping]] = ...) -> None: ...
    class HandlesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class GpusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    RAN_US_FIELD_NUMBER: _ClassVar[int]
    CPU_US_FIELD_NUMBER: _ClassVar[int]
    PEAK_KIB_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    job: str
    index: _containers.RepeatedScalarFieldContainer[int]
    attempt: _containers.RepeatedScalarFieldContainer[int]
    said: _containers.RepeatedScalarFieldContainer[int]
    exit_code: _containers.RepeatedScalarFieldContainer[int]
    signal: _containers.RepeatedScalarFieldContainer[int]
    started_at_ms: _containers.RepeatedScalarFieldContainer[int]
    ended_at_ms: _containers.RepeatedScalarFieldContainer[int]
    ran_us: _containers.RepeatedScalarFieldContainer[int]
    cpu_us: _containers.RepeatedScalarFieldContainer[int]
    peak_kib: _containers.RepeatedScalarFieldContainer[int]
    reasons: _containers.ScalarMap[int, str]
    steps: _containers.MessageMap[int, StepMarks]
    causes: _containers.ScalarMap[int, str]
    lives: _containers.MessageMap[int, Life]
    handles: _containers.ScalarMap[int, str]
    gpus: _containers.ScalarMap[int, int]
    versions: _containers.ScalarMap[int, int]
    def __init__(self, job: _Optional[str] = ..., index: _Optional[_Iterable[int]] = ..., attempt: _Optional[_Iterable[int]] = ..., said: _Optional[_Iterable[int]] = ..., exit_code: _Optional[_Iterable[int]] = ..., signal: _Optional[_Iterable[int]] = ..., started_at_ms: _Optional[_Iterable[int]] = ..., ended_at_ms: _Optional[_Iterable[int]] = ..., ran_us: _Optional[_Iterable[int]] = ..., cpu_us: _Optional[_Iterable[int]] = ..., peak_kib: _Optional[_Iterable[int]] = ..., reasons: _Optional[_Mapping[int, str]] = ..., steps: _Optional[_Mapping[int, StepMarks]] = ..., causes: _Optional[_Mapping[int, str]] = ..., lives: _Optional[_Mapping[int, Life]] = ..., handles: _Optional[_Mapping[int, str]] = ..., gpus: _Optional[_Mapping[int, int]] = ..., versions: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Life(_message.Message):
    __slots__ = ("restarts", "exit_code", "signal", "ended_at_ms", "health", "why")
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    restarts: int
    exit_code: int
    signal: int
    ended_at_ms: int
    health: str
    why: str
    def __init__(self, restarts: _Optional[int] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., ended_at_ms: _Optional[int] = ..., health: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class StepMarks(_message.Message):
    __slots__ = ("started_at_ms", "ended_at_ms", "exit_code", "signal", "out_offset", "err_offset")
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    OUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERR_OFFSET_FIELD_NUMBER: _ClassVar[int]
    started_at_ms: _containers.RepeatedScalarFieldContainer[int]
    ended_at_ms: _containers.RepeatedScalarFieldContainer[int]
    exit_code: _containers.RepeatedScalarFieldContainer[int]
    signal: _containers.RepeatedScalarFieldContainer[int]
    out_offset: _containers.RepeatedScalarFieldContainer[int]
    err_offset: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, started_at_ms: _Optional[_Iterable[int]] = ..., ended_at_ms: _Optional[_Iterable[int]] = ..., exit_code: _Optional[_Iterable[int]] = ..., signal: _Optional[_Iterable[int]] = ..., out_offset: _Optional[_Iterable[int]] = ..., err_offset: _Optional[_Iterable[int]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("cpu_milli", "memory_free", "disk_free", "cores", "waiting_milli", "memory_total", "swap_total", "swap_free", "disks", "gpus", "shortage")
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    WAITING_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAP_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAP_FREE_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SHORTAGE_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_free: int
    disk_free: int
    cores: int
    waiting_milli: int
    memory_total: int
    swap_total: int
    swap_free: int
    disks: _containers.RepeatedCompositeFieldContainer[Disk]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    shortage: str
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_free: _Optional[int] = ..., disk_free: _Optional[int] = ..., cores: _Optional[int] = ..., waiting_milli: _Optional[int] = ..., memory_total: _Optional[int] = ..., swap_total: _Optional[int] = ..., swap_free: _Optional[int] = ..., disks: _Optional[_Iterable[_Union[Disk, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., shortage: _Optional[str] = ...) -> None: ...

class Disk(_message.Message):
    __slots__ = ("path", "total", "free")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    path: str
    total: int
    free: int
    def __init__(self, path: _Optional[str] = ..., total: _Optional[int] = ..., free: _Optional[int] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("name", "busy", "memory_total", "memory_used")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    name: str
    busy: int
    memory_total: int
    memory_used: int
    def __init__(self, name: _Optional[str] = ..., busy: _Optional[int] = ..., memory_total: _Optional[int] = ..., memory_used: _Optional[int] = ...) -> None: ...

class ToNode(_message.Message):
    __slots__ = ("epoch", "welcome", "orders", "open_log", "close_log", "pace", "servers", "resubmit", "open_outputs", "alive", "trust")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    OPEN_LOG_FIELD_NUMBER: _ClassVar[int]
    CLOSE_LOG_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    RESUBMIT_FIELD_NUMBER: _ClassVar[int]
    OPEN_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    welcome: Welcome
    orders: Orders
    open_log: OpenLog
    close_log: CloseLog
    pace: Pace
    servers: Servers
    resubmit: Resubmit
    open_outputs: OpenOutputs
    alive: Alive
    trust: Trust
    def __init__(self, epoch: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ..., open_log: _Optional[_Union[OpenLog, _Mapping]] = ..., close_log: _Optional[_Union[CloseLog, _Mapping]] = ..., pace: _Optional[_Union[Pace, _Mapping]] = ..., servers: _Optional[_Union[Servers, _Mapping]] = ..., resubmit: _Optional[_Union[Resubmit, _Mapping]] = ..., open_outputs: _Optional[_Union[OpenOutputs, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., trust: _Optional[_Union[Trust, _Mapping]] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ("echo",)
    ECHO_FIELD_NUMBER: _ClassVar[int]
    echo: int
    def __init__(self, echo: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("name", "heartbeat_ms", "report_interval_ms", "spread_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    SPREAD_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    heartbeat_ms: int
    report_interval_ms: int
    spread_ms: int
    def __init__(self, name: _Optional[str] = ..., heartbeat_ms: _Optional[int] = ..., report_interval_ms: _Optional[int] = ..., spread_ms: _Optional[int] = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("report_interval_ms", "spread_ms")
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    SPREAD_MS_FIELD_NUMBER: _ClassVar[int]
    report_interval_ms: int
    spread_ms: int
    def __init__(self, report_interval_ms: _Optional[int] = ..., spread_ms: _Optional[int] = ...) -> None: ...

class Servers(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Trust(_message.Message):
    __slots__ = ("ca", "spread_ms")
    CA_FIELD_NUMBER: _ClassVar[int]
    SPREAD_MS_FIELD_NUMBER: _ClassVar[int]
    ca: bytes
    spread_ms: int
    def __init__(self, ca: _Optional[bytes] = ..., spread_ms: _Optional[int] = ...) -> None: ...

class Resubmit(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("echo", "stored", "jobs", "forget", "renews")
    ECHO_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    RENEWS_FIELD_NUMBER: _ClassVar[int]
    echo: int
    stored: int
    jobs: _containers.RepeatedCompositeFieldContainer[JobOrders]
    forget: _containers.RepeatedScalarFieldContainer[str]
    renews: bool
    def __init__(self, echo: _Optional[int] = ..., stored: _Optional[int] = ..., jobs: _Optional[_Iterable[_Union[JobOrders, _Mapping]]] = ..., forget: _Optional[_Iterable[str]] = ..., renews: bool = ...) -> None: ...

class JobOrders(_message.Message):
    __slots__ = ("job", "work", "start_index", "start_attempt", "start_firm", "stop_index", "stop_attempt", "start_gpus", "stop_how", "signal_index", "signal_attempt", "signal_number", "signal_n")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    START_FIRM_FIELD_NUMBER: _ClassVar[int]
    STOP_INDEX_FIELD_NUMBER: _ClassVar[int]
    STOP_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    START_GPUS_FIELD_NUMBER: _ClassVar[int]
    STOP_HOW_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_N_FIELD_NUMBER: _ClassVar[int]
    job: str
    work: Work
    start_index: _containers.RepeatedScalarFieldContainer[int]
    start_attempt: _containers.RepeatedScalarFieldContainer[int]
    start_firm: _containers.RepeatedScalarFieldContainer[bool]
    stop_index: _containers.RepeatedScalarFieldContainer[int]
    stop_attempt: _containers.RepeatedScalarFieldContainer[int]
    start_gpus: _containers.RepeatedScalarFieldContainer[int]
    stop_how: _containers.RepeatedScalarFieldContainer[int]
    signal_index: _containers.RepeatedScalarFieldContainer[int]
    signal_attempt: _containers.RepeatedScalarFieldContainer[int]
    signal_number: _containers.RepeatedScalarFieldContainer[int]
    signal_n: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., start_index: _Optional[_Iterable[int]] = ..., start_attempt: _Optional[_Iterable[int]] = ..., start_firm: _Optional[_Iterable[bool]] = ..., stop_index: _Optional[_Iterable[int]] = ..., stop_attempt: _Optional[_Iterable[int]] = ..., start_gpus: _Optional[_Iterable[int]] = ..., stop_how: _Optional[_Iterable[int]] = ..., signal_index: _Optional[_Iterable[int]] = ..., signal_attempt: _Optional[_Iterable[int]] = ..., signal_number: _Optional[_Iterable[int]] = ..., signal_n: _Optional[_Iterable[int]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("name", "argv", "env", "workdir", "needs", "count", "grace_ms", "timeout_ms", "run", "log_bytes", "limits", "steps", "files", "container", "lease_ms", "version", "sandbox", "stop_signal", "restart", "check", "reports", "record")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class NeedsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    name: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    workdir: str
    needs: _containers.ScalarMap[str, int]
    count: int
    grace_ms: int
    timeout_ms: int
    run: str
    log_bytes: int
    limits: _containers.ScalarMap[str, int]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    files: _containers.ScalarMap[str, bytes]
    container: Container
    lease_ms: int
    version: int
    sandbox: Sandbox
    stop_signal: int
    restart: Restart
    check: Check
    reports: ReportDoor
    record: bytes
    def __init__(self, name: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., workdir: _Optional[str] = ..., needs: _Optional[_Mapping[str, int]] = ..., count: _Optional[int] = ..., grace_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., run: _Optional[str] = ..., log_bytes: _Optional[int] = ..., limits: _Optional[_Mapping[str, int]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., files: _Optional[_Mapping[str, bytes]] = ..., container: _Optional[_Union[Container, _Mapping]] = ..., lease_ms: _Optional[int] = ..., version: _Optional[int] = ..., sandbox: _Optional[_Union[Sandbox, _Mapping]] = ..., stop_signal: _Optional[int] = ..., restart: _Optional[_Union[Restart, _Mapping]] = ..., check: _Optional[_Union[Check, _Mapping]] = ..., reports: _Optional[_Union[ReportDoor, _Mapping]] = ..., record: _Optional[bytes] = ...) -> None: ...

class ReportDoor(_message.Message):
    __slots__ = ("url", "key", "node", "ca", "others", "by_agent")
    URL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    BY_AGENT_FIELD_NUMBER: _ClassVar[int]
    url: str
    key: str
    node: str
    ca: str
    others: _containers.RepeatedScalarFieldContainer[str]
    by_agent: bool
    def __init__(self, url: _Optional[str] = ..., key: _Optional[str] = ..., node: _Optional[str] = ..., ca: _Optional[str] = ..., others: _Optional[_Iterable[str]] = ..., by_agent: bool = ...) -> None: ...

class Restart(_message.Message):
    __slots__ = ("attempts", "within_ms", "delay_ms", "delay_max_ms")
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    within_ms: int
    delay_ms: int
    delay_max_ms: int
    def __init__(self, attempts: _Optional[int] = ..., within_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ..., delay_max_ms: _Optional[int] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("argv", "port", "path", "code_from", "code_to", "interval_ms", "timeout_ms", "after_ms", "failures", "successes")
    ARGV_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CODE_FROM_FIELD_NUMBER: _ClassVar[int]
    CODE_TO_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    SUCCESSES_FIELD_NUMBER: _ClassVar[int]
    argv: _containers.RepeatedScalarFieldContainer[str]
    port: int
    path: str
    code_from: _containers.RepeatedScalarFieldContainer[int]
    code_to: _containers.RepeatedScalarFieldContainer[int]
    interval_ms: int
    timeout_ms: int
    after_ms: int
    failures: int
    successes: int
    def __init__(self, argv: _Optional[_Iterable[str]] = ..., port: _Optional[int] = ..., path: _Optional[str] = ..., code_from: _Optional[_Iterable[int]] = ..., code_to: _Optional[_Iterable[int]] = ..., interval_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., after_ms: _Optional[int] = ..., failures: _Optional[int] = ..., successes: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("name", "argv", "env", "timeout_ms")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    timeout_ms: int
    def __init__(self, name: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("image", "user", "network", "mounts", "workdir", "pull")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    image: str
    user: str
    network: str
    mounts: _containers.RepeatedCompositeFieldContainer[Mount]
    workdir: str
    pull: str
    def __init__(self, image: _Optional[str] = ..., user: _Optional[str] = ..., network: _Optional[str] = ..., mounts: _Optional[_Iterable[_Union[Mount, _Mapping]]] = ..., workdir: _Optional[str] = ..., pull: _Optional[str] = ...) -> None: ...

class Sandbox(_message.Message):
    __slots__ = ("network", "writable")
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    network: bool
    writable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, network: bool = ..., writable: _Optional[_Iterable[str]] = ...) -> None: ...

class Mount(_message.Message):
    __slots__ = ("source", "target", "read_only")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    read_only: bool
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., read_only: bool = ...) -> None: ...

class OpenLog(_message.Message):
    __slots__ = ("id", "job", "index", "attempt", "stream", "offset", "follow", "since_ms", "until_ms", "tail_lines", "tail_of_both")
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    TAIL_OF_BOTH_FIELD_NUMBER: _ClassVar[int]
    id: int
    job: str
    index: int
    attempt: int
    stream: str
    offset: int
    follow: bool
    since_ms: int
    until_ms: int
    tail_lines: int
    tail_of_both: bool
    def __init__(self, id: _Optional[int] = ..., job: _Optional[str] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., stream: _Optional[str] = ..., offset: _Optional[int] = ..., follow: bool = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., tail_lines: _Optional[int] = ..., tail_of_both: bool = ...) -> None: ...

class OpenOutputs(_message.Message):
    __slots__ = ("id", "job", "paths", "list", "index")
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    id: int
    job: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    list: bool
    index: int
    def __init__(self, id: _Optional[int] = ..., job: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ..., list: bool = ..., index: _Optional[int] = ...) -> None: ...

class CloseLog(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("id", "offset", "data", "missing", "error", "at_ms", "code", "mark_bytes", "mark_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MARK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MARK_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    offset: int
    data: bytes
    missing: int
    error: str
    at_ms: int
    code: str
    mark_bytes: _containers.RepeatedScalarFieldContainer[int]
    mark_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., missing: _Optional[int] = ..., error: _Optional[str] = ..., at_ms: _Optional[int] = ..., code: _Optional[str] = ..., mark_bytes: _Optional[_Iterable[int]] = ..., mark_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class LogDone(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Tail(_message.Message):
    __slots__ = ("job", "index", "attempt", "stream", "offset", "data", "is_final")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    job: str
    index: int
    attempt: int
    stream: str
    offset: int
    data: bytes
    is_final: bool
    def __init__(self, job: _Optional[str] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., stream: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., is_final: bool = ...) -> None: ...

class Tails(_message.Message):
    __slots__ = ("tails",)
    TAILS_FIELD_NUMBER: _ClassVar[int]
    tails: _containers.RepeatedCompositeFieldContainer[Tail]
    def __init__(self, tails: _Optional[_Iterable[_Union[Tail, _Mapping]]] = ...) -> None: ...

class TailsKept(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("csr", "follows")
    CSR_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    csr: bytes
    follows: bool
    def __init__(self, csr: _Optional[bytes] = ..., follows: bool = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("certificate", "ca")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    ca: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., ca: _Optional[bytes] = ...) -> None: ...
