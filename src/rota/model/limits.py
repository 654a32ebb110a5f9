"""Every bound, with its reason."""

BLOCK_TASKS = 256  # tasks per block record: a rewrite stays under 16 kB, a million tasks are 3,907 keys
COUNT_MAX = 10_000_000  # tasks of a job: keeps its finished columns below 1 GB
JOBS_WAITING_MAX = 100_000  # jobs without an end; above it submits are refused, so memory stays bounded
REASON_LENGTH_MAX = 1_000  # characters of why something is so: it is stored, listed and shown
NAME_LENGTH_MAX = 128  # fits a table column and a file name
LABELS_MAX = 64  # per job or node: each is shown in lists and sent along
LABEL_VALUE_MAX = 256  # fits a line
RESOURCES_MAX = 32  # kinds in one job, or declared by one node: each is one more row of the placement columns
COMMAND_BYTES_MAX = 128 * 1024  # Linux' limit for one argument string
EXEC_BYTES_MAX = 3 << 19  # of a command and its environment: Linux takes 2 MiB, and the node adds its own
SANDBOX_WORDS_MAX = 8_000  # of a command in a sandbox: bubblewrap takes 9,000, its own among them
PATH_BYTES_MAX = 4095  # Linux' PATH_MAX without the zero at the end
PATH_PART_BYTES_MAX = 255  # Linux' NAME_MAX: one file or directory
STEPS_MAX = 100  # of a job: how all of them stand is told at each change of one
STEPS_BYTES_MAX = 256 * 1024  # commands of all steps: sent to every node once per job
FILES_BYTES_MAX = (
    256 * 1024
)  # files sent with a job, in all: they are kept with it and sent to each node once
FILES_MAX = 100  # of them: each is written before the first task starts
OUTPUT_BYTES = 1 << 30  # of a job, sent at once, unless its node says otherwise: a minute of a fast network
RESULT_BYTES_MAX = 16 * 1024  # reported by an attempt: figures and names; what is larger is an output
RESULT_NESTING_MAX = 32  # levels: deeper is no result, and costs each reader of it
RESULT_FILE_BYTES_MAX = 8 * 1024  # left by a task for its agent to report, beside steps and outputs
RESULT_OUTPUTS_MAX = 100  # named in a result that an agent reports
RESULT_PATIENCE_MS = 60_000  # in which the agent tries to report while it is connected; then the end is told
RESULTS_BYTES_MAX = 64 << 20  # of all attempts of a job: they are kept in memory until it expires
WORKERS_MAX = 1_000  # that are dialled: each is a connection of ours, and calls every few seconds
DIALLED_CPU_MILLI = 64_000  # of a worker that does not say how large it is
WORKER_PROBE_MS = 2_000  # between two calls that ask whether a worker is there
WORKER_ANSWER_MS = 10_000  # for it to answer: less than the silence after which a node is suspect
WORKER_START_PROBE_MS = 3_000  # for it to answer before a start is sent: the caller waits meanwhile
ENV_BYTES_MAX = 128 * 1024  # sent to every node once per job
IMAGE_LENGTH_MAX = 512  # longer than any registry allows
MOUNTS_MAX = 32  # of a container: each is one more argument of its runtime
CONTAINER_ENV_BYTES_MAX = 60_000  # one variable of a container: runtimes read a line of 64 KiB at most
CRON_LATE_MS = 60_000  # after its instant a run is still in time
CRON_CHECK_MS = 20_000  # between two looks at the wall clock, which may be set
CRON_MISSED_MS = 31 * 24 * 3600 * 1000  # what was missed before that is forgotten: a month has few minutes
CRON_MISSED_MAX = 1_000  # missed runs that begin at once, the newest
CRON_HISTORY_MAX = 1_000  # ended runs that are kept: each is a job
CRONS_MAX = 10_000  # each is looked at some times a minute
AFTER_MAX = 1_000  # jobs that one job waits for: all are looked at whenever one of them ends
WHERE_MAX = 32  # constraints of a job: each is one pass over the nodes
CPU_MILLI_MAX = 100_000 * 1000  # more cores than any machine has: a typing error
AMOUNT_MAX = 2**60  # an exbibyte: sums of a million of them still fit into 80 bits of Python, columns into 64
CARRIED_MAX = 10_000  # ranges of tasks that a job leaves out when it runs once more: they are in its spec
OBSERVED_BLOCKS = 16  # of a job, the last ones that reported: by these is judged what its tasks use
OBSERVED_MEMORY_MIN = 64 * 2**20  # used by a task: less says nothing of where it may run
OBSERVED_RUN_US = 1_000_000  # that a task ran: what is shorter says nothing of how many cores it keeps busy
MOVES_MAX = (
    1_000  # tasks moved by one order: each is named in a record, and looked at in every round until it runs
)
MOVE_WAIT_MS = (
    120_000  # that a moved task waits for a node its move allows; an offer may take 60 s to be withdrawn
)
RESTARTS_MAX = 10_000  # tasks restarted by one wish: each is named in its record
JOBS_AGE_MS = 7 * 24 * 3600 * 1000  # how long an ended job is remembered, unless a server or job says so
JOBS_KEPT_MAX = 10_000_000  # what a server may say instead: above it is a typing error
JOBS_KEPT = 100_000  # ended jobs, unless a server says so: some hundred MB, read again in seconds
KEEP_SECONDS_MAX = 10 * 365 * 24 * 3600  # ten years: above it is a unit mistaken
RENEWAL_WINDOW_SECONDS = 90 * 24 * 3600  # a node that was off for a quarter of a year is still the same node
RENEWAL_WINDOW_SECONDS_MAX = 10 * 365 * 24 * 3600  # the life of the authority: nothing it signed lasts longer
JOIN_ADDRESSES_MAX = 16  # networks from which a join token may be used: each is a line of the vault
REVOKED_LOOK_MS = 60_000  # between two looks at the wall clock, for whether a revoked node can be forgotten
TOMBSTONE_MS = 24 * 3600 * 1000  # how long a submit that is repeated is known after its job has expired
TOMBSTONES_MAX = 1_000_000  # the same, in jobs: each is two short records
EXPIRE_RECORDS = 10_000  # their records: of the largest arrays one job alone has more
EXPIRE_BATCH = 200  # jobs that expire in one commit: nobody else waits for more
SIGNALS_KEPT = 16  # of a job: a node that was away for more hears of the last ones only
REQUESTS_KEPT = 16  # keys of requests on a job: a client repeats one within minutes, and holds few at once
RESTART_ATTEMPTS_MAX = 1000  # of a process in place, within the time: each is remembered by its keeper
CHECK_SECONDS_MIN = 0.1  # between two checks: more often is the service's own business
CHECK_COUNT_MAX = 1000  # checks alike in a row
SPARED_MAX = 16  # ranges of versions that a rollback leaves alone: beyond, they are replaced once more
RETRIES_MAX = 1000  # a try number fits 16 bits, with room for the cluster's own faults
TRIES_MAX = 60_000  # what the 16-bit column holds; a task beyond it has failed, whoever is to blame
OFFER_GRACE_MS = 3_000  # after a broken connection: an agent or keeper that was restarted is back by then
ASK_FOR_NODE_MS = 1_000  # that a job waits before it asks for a node: the next round may place it
UNPLACEABLE_CHECK_MS = 5_000  # between two looks whether nodes have changed for jobs that no node can take
UNPLACEABLE_PASS_MS = 1_000  # between two passes over all lines: nodes may come and go by the thousand
UNPLACEABLE_QUEUES_PER_CHECK = 500  # lines: a few milliseconds
UNPLACEABLE_JOBS_PER_CHECK = (
    256  # jobs that are told at once: each is a record and an event of the same commit
)
OFFERED_MS = 60_000  # an offer that a connected node has not answered: then it is offered elsewhere
QUEUED_MS = 3600 * 1000  # on a node and not started: an hour, for an image may be large and a network slow
UNKILLABLE_MS = 30_000  # beyond its grace: what has not stopped by then is called unkillable
STOPPING_MS = 24 * 3600 * 1000  # and beyond that: a day, then nobody waits for its processes any more
AGE_LOOK_MS = 10_000  # between two looks at what a node leaves undone: so late an offer may be noticed
QUARANTINE_LOST_NODES = (
    3  # lost while a task ran on them: by then it is held, before it takes down the others
)
QUARANTINE_KEEPER_DEATHS = (
    3  # of keepers under which a task ran: by then it is held, if no other job was at all
)
QUARANTINE_KEEPER_DEATHS_TIED = (
    6  # where another job was at each of these deaths, too: then the last to start is held
)
FAULT_BACKOFF_FIRST_MS = (
    1_000  # pause after a task's second fault of the cluster in a row; the first has none
)
FAULT_BACKOFF_MAX_MS = 120_000  # the longest: two minutes, so that work is back soon after a bad night
FAULT_JITTER_PERCENT = 50  # wide: tasks lost together come back one by one, which tells a culprit from others
FAULT_RESET_MS = 60_000  # a try that lasted this long makes the next fault the first in a row
BLAME_MS = 24 * 3600 * 1000  # a lost node counts for so long: who lives for months sees some go
HELD_MS = 7 * 24 * 3600 * 1000  # a task is held: a week, so that somebody is back from a holiday
PRIORITY_MAX = 100  # 0 to 100, 50 is ordinary
PREEMPT_MARGIN = 10  # by how much a priority must be higher for running work to give way to it
NOMINATED_MS = 60_000  # how long room stays promised to the job for which others had to give way
EVICTIONS_MAX = 100  # tasks for which others are made to give way in one round
RESERVATION_AHEAD_MS = 24 * 3600_000  # room is promised no further ahead: what is expected then is a guess
RESERVATION_LATE_MS = 60_000  # how long room stays promised, at least, beyond the time it was first expected
RESERVATION_BACKOFF_MS = 600_000  # how long a job whose promise was not kept gets no other
RESERVATION_RETRY_MS = 30_000  # a job that could be promised nothing is looked at again after so long
RESERVATIONS_TRIED_MAX = (
    4  # jobs looked at in vain for one that room can be promised to: each takes up to 1 ms
)
RESERVATIONS_TRIED_MS = 100  # the window of RESERVATIONS_TRIED_MAX, however many rounds there are
AFFINITY_CHANGES_KEPT = 10_000  # changed counts of neighbours: a scheduler further behind looks at all lines
QUEUE_CHANGES_KEPT = (
    100_000  # lines that jobs joined or left: a scheduler further behind looks at all of them
)
SUPERSEDED_KEPT = 64  # older attempts kept per block; more are only counted
LOG_BYTES_MIN = 64 * 1024  # of a stream that is kept: holes in files are not made smaller
EPOCH_MAX = 2**63 - 1  # the last that a store can hold
EPOCH_AHEAD_MAX = 2**40  # by which a node may have seen more than its server: etcd counts every write
JOBS_PER_EPOCH = 1_000_000  # numbers of jobs and nodes that a server without records leaves to each start
ATTEMPTS_PER_EPOCH = 100_000  # the same of an adopted job's attempts: placed once a minute, two months' worth
EPOCHS_NUMBERED = 2**40  # starts, before numbers of jobs begin again: they must fit a record
EPOCHS_OF_ATTEMPTS = 40_000  # starts, after which such attempts share their numbers: those have 32 bits
ADOPTION_MS = 60_000  # after a start without records: nodes are back by then, or count as lost
ADOPTION_LEAST_MS = 10_000  # the same after a node brings a job back later than that: others may be close
RECORD_BYTES_MAX = 4 << 20  # of a job's sealed spec: a request of 1 MiB, and what defaults and base64 add
RESTORE_NUMBERS = 10_000_000  # of jobs and nodes, left out after a restore: some may be given out already
RESTORE_REVISIONS = 1_000_000_000  # the same of commits: ten days of a thousand a second
STORE_RESERVE_BYTES = 16 << 20  # of disk: results of a hundred thousand tasks, when there is no other room
TAIL_BYTES = 16 * 1024  # of each stream, kept by the server for when the node is gone
TAILS_BYTES_MAX = 1024**3  # of all of them; the oldest go first
BODY_BYTES_MAX = 1024 * 1024  # an API request: before authentication nobody may cost more
OPEN_BODY_BYTES_MAX = 128 * 1024  # the same where no token is asked for: a CSR and the labels of a node
HEAD_BYTES_MAX = 96 * 1024  # of a request's line and headers: the longest URL, and 32 KiB for the rest
URL_BYTES_MAX = 64 * 1024  # the longest names a thousand places in logs, from which a reader goes on
HEADERS_MAX = 100  # of one request: browsers behind proxies send some thirty
CHUNK_OVERHEAD_MAX = (
    32 * 1024
)  # bytes of a chunked body beyond eight times its content: a chunk of one is six
PIPELINED_BYTES_MAX = 64 * 1024  # sent behind a request that is not answered yet: no usual client does that
CONNECTIONS_MAX = 10_000  # of the HTTP port, unless a server says so: each costs some 20 kB and a descriptor
CONNECTIONS_PER_ADDRESS_MAX = 2_000  # of them from one address: a CI host follows a thousand jobs at once
CONNECTIONS_LIMIT = 1_000_000  # what a server may say instead: above it is a typing error
HEAD_SECONDS = 10.0  # for a TLS handshake, and for a head to arrive: one packet, and its repetitions
BODY_SECONDS = 60.0  # for a body to arrive: 1 MiB at 17 kB/s
IDLE_SECONDS = 75.0  # that a connection is kept without a request: more than clients keep theirs
CALL_BYTES_MAX = 2 << 20  # a message of a controller: a spec of 1 MiB and 20,000 positions in logs
CALLS_MAX = 10_000  # of one connection at a time: each job that a controller follows may be one
GRPC_CONNECTIONS_MAX = 2_000  # of the gRPC port, unless a server says so: controllers and workers are few
GRPC_IDLE_SECONDS = 300.0  # without a call, after which a connection is closed: the next call makes another
AGENT_MESSAGE_BYTES_MAX = 64 << 20  # what a node says at once: its first word names all that it runs
AGENT_CONNECTIONS_MAX = 20_000  # of the agent port: one a node, and twice as many while all of them reconnect
AGENT_DESCRIPTORS_PERCENT = 40  # of all descriptors, for these
HANDSHAKE_SECONDS = 10.0  # for TLS and the first frame of HTTP/2 at the gRPC ports
AUDIT_FILE_BYTES = 64 << 20  # of the audit log, after which a new file begins: 200,000 lines or more
AUDIT_FILES = 8  # of them, the one that is written among them: half a GiB, then the oldest is removed
AUDIT_COUNT_SECONDS = 60.0  # in which audit lines that are alike are one, and one more with their number
ORIGIN_BYTES_MAX = 200  # an address as gRPC names it; one with a zone of IPv6 is the longest
AUDIT_KINDS_MAX = 1_000  # kinds of lines told apart meanwhile: by address, caller, action and outcome
ACCEPTED_AT_ONCE = 64  # connections, before other clients have their turn
DESCRIPTORS_SHARE = 2  # of all descriptors one part in this many is for HTTP: the rest is for nodes and files
TALLY_SECONDS = 60.0  # between two log lines of one kind about what clients did wrong
TALLY_KINDS_MAX = 32  # reasons told apart meanwhile
REQUEST_SECONDS_MAX = 3_600.0  # an hour for each of these: above it is a unit mistaken
TIMEOUT_SECONDS_MAX = 10 * 365 * 24 * 3600  # ten years: above it is a unit mistaken
WALL_CLOCK_CHECK_MS = 60_000  # how soon it is seen that the wall clock jumped over a deadline
NOTICE_SECONDS = 30.0  # a machine is taken away so soon where its notice does not say: clouds give no less
NOTICE_NO_LOOKS = 3  # in a row, that find no notice any more, take it back: one may have failed
NOTICE_WORDS_MAX = 200  # of a notice: a line of a table
DRAIN_SECONDS_MAX = 30 * 24 * 3600  # a month to run empty: above it is a unit mistaken
MEMORY_LIMIT_MIN = 2**20  # with less memory no program could even be executed
CPU_LIMIT_MILLI_MIN = 10  # the smallest quota that the kernel takes: 1 ms of each 100 ms
PIDS_MAX = 2**22  # as many processes as Linux ever has numbers for
GRACE_SECONDS_MAX = 24 * 3600  # a day to stop: above it is a unit mistaken

CLUSTERS_MAX = 1_000  # each is looked at whenever a job comes, where there is more than one
CLUSTERS_ALIKE_MAX = 100  # made like one of them by what waits: above it is a typing error
CLUSTER_NODES_MAX = 10_000  # of one cluster that a provider makes: above it is a typing error
FAIL_AFTER_SECONDS = 60.0  # without a node that is not lost: as long as a machine takes to boot
FAIL_AFTER_SECONDS_MIN = 1.0  # below it is a unit mistaken
RECONNECT_MS = (
    30_000  # for nodes to call a server that was away before a cluster fails: agents retry each 12 s
)
SCALE_CHECK_MS = 1_000  # between two looks at how large a cluster should be
REASSIGN_CHECK_MS = 5_000  # between two looks at which jobs can leave a cluster that drains
REASSIGN_STEP_MAX = 1_000  # jobs that are assigned to other clusters in one step: some 50 ms of work
REASSIGN_SEARCH_VISITS = (
    200_000  # nodes looked at in one step of a search for stranded jobs: some 100 ms of work
)
REASSIGN_SEARCH_PAUSE_MS = 200  # after such a step, so that the search takes a third of a core at the most
SCALE_STEP_MAX = 100  # machines asked for at one time: as many are tried out; the next look comes soon
SCALE_NODES_PER_CHECK = 100  # nodes of a cluster for each such second between two trials: they cost more
SCALE_UNCHANGED_CHECKS = 5  # between two trials of the same that waits: a pause before a retry may be over
PROVIDER_CALLS_MAX = 16  # calls of one provider under way: most have a limit on their rate
PROVIDER_CALL_SECONDS = 300.0  # one call of a provider: what takes longer hangs
PROVIDER_LIST_SECONDS = 30.0  # between two looks at which machines there are
PROVIDER_FAILURES_MAX = (
    6  # in a row, without a node: then its cluster has failed, after minutes, at most an hour
)
PROVIDER_PAUSE_LEAST_SECONDS = 0.1  # after a failure of a provider: below it is a busy loop
PROVIDER_PAUSE_LAST_MS = 300_000  # the longest such pause: it doubles each time
CLUSTER_SECONDS_MAX = 7 * 24 * 3600  # to be idle, or to join: above it is a unit mistaken

BATCH_KEYS_MAX = 10_000  # keys looked at for one commit; what is due beyond goes into the next
BATCH_DECISIONS_MAX = 30_000  # decisions for one commit: about a second of work
KEY_DECISIONS_MAX = 1_000  # times one key is decided for one commit; then what is due goes into the next
LIVELOCK_DECISIONS_MAX = (
    3 * KEY_DECISIONS_MAX
)  # decisions of one key before it is asked whether that ever ends
LIVELOCK_RATIO = (
    100  # decisions a key, on average, that tell a livelock from a long cascade, where it is a few
)
PARKED_FIRST_MS = 1_000  # a key or record on which our code failed is left alone for this long
PARKED_LAST_MS = 300_000  # the longest such pause: it doubles each time
REBUILD_SHARE = 100  # rebuilding a half-written mirror takes at most one part in this many of the time
LOOKAHEAD_US = 60_000  # work a node may hold beyond its room: two report intervals and a commit
LOOKAHEAD_TASKS_MAX = 256  # the same, in tasks per node
DEMAND_JOBS = 1_000  # the last jobs, by which GPU nodes are judged: a mix that drifts is followed
DEMAND_JOBS_STEP = 128  # jobs after which that is looked at again: it costs some tens of milliseconds
GPUS_MAX = 64  # of one node: more than any machine has, and an attempt's fit one number
NODE_TASKS_MAX = 10_000  # live attempts on one node, also of tasks that ask for nothing
ROWS_KEPT = 1_000  # shapes whose points on every node are kept: 80 MB at ten thousand nodes
SHORT_RUN_US = 50_000  # runs longer than this gain nothing from lookahead
REFUSAL_MS = 30_000  # a node's refusal counts this long unless the node reports a change
RETRY_BACKOFF_FIRST_MS = 1_000  # pause before the first retry; doubled each time
RETRY_BACKOFF_MAX_MS = 60_000  # the longest pause
SERVICE_BACKOFF_MAX_MS = 300_000  # the same of a service, which is tried for ever
SERVICE_STABLE_US = 600_000_000  # a service that ran so long begins anew with the shortest pause
RETRY_JITTER_PERCENT = (
    20  # by how much a pause may be shorter, so that what failed together does not return so
)
RETRY_DELAY_MS_MAX = 24 * 3600 * 1000  # a day between two tries: above it is a unit mistaken
RETRY_CODES_MAX = 64  # exit codes named by a job: they are looked through at each failure
TOLD_AGAIN_FIRST_MS = 10_000  # before a controller is told again of what it has to decide; doubled each time
TOLD_AGAIN_LAST_MS = 300_000  # the longest such pause: an event each, for as long as nobody answers
CONTROLLER_WAIT_SECONDS = 60.0  # a controller may be away before others act for it: it may be restarting
ANSWERS_MAX = 10_000  # lost tasks of a job that its controller decides on: each is named in a record
STALL_MS = 5_000  # a gap in our own ticks beyond this is our stall, not the nodes' silence
TICK_MS = 1_000  # the driver looks at the clock at least this often, so that a stall is seen
SUSPECT_MS = 15_000  # silence on an open stream: one heartbeat and a half missed
LOST_MS = 30_000  # silence after which a node's work is started elsewhere
BRAKE_WINDOW_MS = (
    60_000  # nodes that fall silent within this of each other have one cause: a switch, our own network
)
BRAKE_NODES = 3  # silent together, from which on that is asked at all: two may be chance
BRAKE_SLOW_PERCENT = 30  # of the nodes: their work is started elsewhere slowly, for most of them may return
BRAKE_STOP_PERCENT = 50  # of the nodes: it is not, for it is likelier that we are cut off than they are gone
BRAKE_STEP_MS = 10_000  # between two steps in which nodes are given up while the brake slows that
BRAKE_STEP_PERCENT = 1  # of the nodes, and at least one, in a step: five minutes for a third of them
BRAKE_LOOK_MS = 1_000  # how soon it is seen that a brake is off
BEAT_MS = 2_000  # a node says something at least this often: orders that answer an old word are refused
REPORT_LEAST_MS = 1_000  # between two looks at how busy a node is: what is asked more often is noise
REPORT_MOST_MS = 60_000  # the same, idle: what is older says nothing about now
REPORTS_PER_SECOND = 2_000  # of all nodes together: each costs the server some tens of microseconds
REPORT_POINTS = 5  # of a hundred: a change of cpu or memory by so much is told at once
QUEUE_LENGTH_CHECK_MS = 5_000  # between two looks at how long the queue is
QUEUE_LENGTH_JOBS_PER_MS = 10  # waiting jobs for each further millisecond between two looks: each is counted
STATISTICS_LEAST_MS = 1_000  # between two summaries to one controller: nodes report no more often
STATISTICS_MOST_MS = 3_600_000  # the same: an hour; what is older is asked for by State
STATISTICS_PART_NODES = 500  # of one message, and looked at before others have their turn
STATISTICS_PART_BYTES = 1 << 20  # of one message, about: gRPC clients take 4 MiB unless told otherwise
STATISTICS_QUEUE_SHARE = 20  # counting the queue takes at most one part in this many of the time
DISKS_MAX = 16  # of a node, in its statistics
LEASE_MS = 20_000  # how long one_at_a_time work may run without a word of the control plane
LEASE_MS_MIN = 3_000  # less would be used up by a slow network: it is killed a second before, told of thrice
LEASE_MS_MAX = 3_600_000  # an hour: so long a task waits after its node was lost
LEASE_MARGIN_MS = 3_000  # at least, or 15 % of the lease: two clocks may differ, and a message is under way
LEASE_MARGIN_SHARE = 0.15
LEASE_MARGIN_SHARE_MIN = 0.125  # two clocks, one 5 % fast and one 5 % slow, are 11 % apart
LEASE_MARGIN_MS_MIN = 1_000  # what a commit may take
LEADER_TTL_SECONDS = 10  # so long after a leader's last word another may lead, where several stand for it
LEADER_TTL_SECONDS_MIN = 2  # etcd raises less to this
LEADER_TTL_SECONDS_MAX = 300
NAMESPACE_JOBS_MAX = 20_000  # unfinished, of one other than `default` where nothing is set: a fifth of all
NAMESPACE_TASKS_MAX = 20_000_000  # of these jobs: two of the largest
NAMESPACE_BYTES_MAX = 1 << 30  # of commands, environments and files of all its jobs: they are kept in memory
REQUESTS_PER_SECOND = 500  # of one token, unless it is an admin's of all namespaces: others are served too
REQUESTS_AT_ONCE = 1_000  # of one token, above its rate: a script that begins, a client that reconnects
GUESSES_PER_SECOND = 10  # tokens that are not known, of one address: a client with an old one asks far less
GUESSES_AT_ONCE = 200  # above that rate: many clients behind one address whose tokens were revoked
REQUESTS_PER_SECOND_MAX = 1_000_000  # to set: more than any server answers
SHARE_OF_HEAVY = 0.5  # of the event loop, for a heavy token and all lighter ones: the rest keeps latency low
SHARE_TOLERANCE = 1.2  # times the mean use that a token may have: equal ones differ by chance
SHARE_LIGHT = 0.7  # of the mean use: a token that uses less is kept from waiting behind heavy ones
SHARE_LOOK_SECONDS = 0.1  # between two looks at the use of all active tokens
SHARE_WINDOW_SECONDS = 1.0  # over which use is averaged: longer than a short burst
SHARE_ACTIVE_SECONDS = 2.0  # after its last request a token counts as one that others make room for
SHARE_AT_ONCE_SECONDS = 0.05  # of the event loop, before a token waits: some tens of requests
SHARE_DEBT_SECONDS_MAX = 1.0  # for one request that took long: it is not waited for longer than some seconds
SHARE_WAIT_SECONDS_MAX = 5.0  # of a request; then it is refused, and its client comes again
TOKEN_CHECK_SECONDS = 2.0  # between two looks at the token of an open stream: revocation ends it within 5 s
STANDBY_AGE_MS = 5_000  # what a standby knows is shown if it is no older; else the leader is asked first
STANDBY_AGE_MAX_MS = 600_000  # nor is it shown at all if it is older: tokens may have been revoked since
SPREAD_MS = 12  # for each node, over which they spread their calls: one costs the server some 4 ms of a core
ROTATION_SPREAD_MS = 20  # for each node, over which they renew when the CA is rotated: a renewal and a call
SERVER_SILENT_MS = 12_000  # of several servers one that hangs is left well before nodes count as lost
WATCHER_TELL_MS = 1_000  # between a watcher and the leader: far below STALE_ORDER_MS, as echoes wait for it
WATCHER_SILENT_MS = 10_000  # each side then leaves the other, and nodes have their grace to move elsewhere
WATCHER_LISTED_MS = 600_000  # agents are told of a watcher that is gone so long: it is expected back
WATCHERS_MAX = 100  # of a cluster: nodes are told of each
SESSION_WORDS_MAX = 1_000  # of one node, waiting at the leader; with more its session ends: it says all again
HEARTBEAT_MS = 5_000  # at most a third of the grace
STALE_ORDER_MS = 5_000  # a node refuses orders that answer a word it said longer ago than this
EVENTS_KEPT_MS = 24 * 3600 * 1000  # how far back a subscriber may resume
EVENTS_IN_MEMORY = 5_000  # the latest, up to twice as many: served without the store
