"""Every bound, with its reason."""

BLOCK_TASKS = 256  # tasks per block record: a rewrite stays under 16 kB, a million tasks are 3,907 keys
COUNT_MAX = 10_000_000  # tasks of a job: keeps its finished columns below 1 GB
JOBS_WAITING_MAX = 100_000  # jobs without an end; above it submits are refused, so memory stays bounded
NAME_LENGTH_MAX = 128  # fits a table column and a file name
COMMAND_BYTES_MAX = 128 * 1024  # Linux' limit for one argument string
STEPS_MAX = 100  # of a job: how all of them stand is told at each change of one
STEPS_BYTES_MAX = 256 * 1024  # commands of all steps: sent to every node once per job
FILES_BYTES_MAX = (
    256 * 1024
)  # files sent with a job, in all: they are kept with it and sent to each node once
FILES_MAX = 100  # of them: each is written before the first task starts
OUTPUT_BYTES = 1 << 30  # of a job, sent at once, unless its node says otherwise: a minute of a fast network
RESULT_BYTES_MAX = 16 * 1024  # reported by an attempt: figures and names; what is larger is an output
RESULTS_BYTES_MAX = 64 << 20  # of all attempts of a job: they are kept in memory until it expires
WORKERS_MAX = 1_000  # that are dialled: each is a connection of ours, and calls every few seconds
DIALLED_CPU_MILLI = 64_000  # of a worker that does not say how large it is
WORKER_PROBE_MS = 2_000  # between two calls that ask whether a worker is there
WORKER_ANSWER_MS = 10_000  # for it to answer: less than the silence after which a node is suspect
ENV_BYTES_MAX = 128 * 1024  # sent to every node once per job
IMAGE_LENGTH_MAX = 512  # longer than any registry allows
MOUNTS_MAX = 32  # of a container: each is one more argument of its runtime
CONTAINER_ENV_BYTES_MAX = 60_000  # one variable of a container: runtimes read a line of 64 KiB at most
CRON_LATE_MS = 60_000  # after its instant a run is still in time
CRON_LOOK_MS = 20_000  # between two looks at the wall clock, which may be set
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
RESTARTS_MAX = 10_000  # tasks restarted by one wish: each is named in its record
JOBS_AGE_MS = 7 * 24 * 3600 * 1000  # how long an ended job is remembered, unless a server or job says so
JOBS_KEPT = 100_000  # ended jobs, unless a server says so: some hundred MB, read again in seconds
KEEP_SECONDS_MAX = 10 * 365 * 24 * 3600  # ten years: above it is a unit mistaken
GONE_MS = 24 * 3600 * 1000  # how long a submit that is repeated is known after its job has expired
GONE_MAX = 1_000_000  # the same, in jobs: each is two short records
EXPIRE_BATCH = 200  # jobs that expire in one commit: nobody else waits for more
SIGNALS_KEPT = 16  # of a job: a node that was away for more hears of the last ones only
RESTART_ATTEMPTS_MAX = 1000  # of a process in place, within the time: each is remembered by its keeper
CHECK_SECONDS_MIN = 0.1  # between two checks: more often is the service's own business
CHECK_COUNT_MAX = 1000  # checks alike in a row
SPARED_MAX = 16  # ranges of versions that a rollback leaves alone: beyond, they are replaced once more
RETRIES_MAX = 1000  # a try number fits 16 bits, with room for the cluster's own faults
TRIES_MAX = 60_000  # what the 16-bit column holds; a task beyond it has failed, whoever is to blame
OFFERED_MS = 60_000  # an offer that a connected node has not answered: then it is offered elsewhere
QUEUED_MS = 3600 * 1000  # on a node and not started: an hour, for an image may be large and a network slow
UNKILLABLE_MS = 30_000  # beyond its grace: what has not stopped by then is called unkillable
STOPPING_MS = 24 * 3600 * 1000  # and beyond that: a day, then nobody waits for its processes any more
AGE_LOOK_MS = 30_000  # between two looks at what a node leaves undone
SUSPECT_NODES = 3  # lost while a task ran on them: by then it is held, before it takes down the others
BLAME_MS = 24 * 3600 * 1000  # a lost node counts for so long: who lives for months sees some go
HELD_MS = 7 * 24 * 3600 * 1000  # a task is held: a week, so that somebody is back from a holiday
PRIORITY_MAX = 100  # 0 to 100, 50 is ordinary
PREEMPT_MARGIN = 10  # by how much a priority must be higher for running work to give way to it
NOMINATED_MS = 60_000  # how long room stays promised to the job for which others had to give way
EVICTIONS_MAX = 100  # tasks for which others are made to give way in one round
PROMISE_AHEAD_MS = 24 * 3600_000  # room is promised no further ahead: what is expected then is a guess
PROMISE_LATE_MS = 60_000  # how long room stays promised, at least, beyond the time it was first expected
PROMISE_REST_MS = (
    600_000  # a job whose promise was not kept gets no other for so long: others have their turn
)
PROMISE_LOOK_MS = 30_000  # a job that could be promised nothing is looked at again after so long
PROMISES_TRIED_MAX = (
    4  # jobs a round looks at to find one that room can be promised to: each costs up to 1 ms
)
NEIGHBOUR_MOVES_KEPT = 10_000  # changed counts of neighbours: a scheduler further behind looks at all lines
LINE_CHANGES_KEPT = 100_000  # lines that jobs joined or left: a scheduler further behind looks at all of them
SUPERSEDED_KEPT = 64  # older attempts kept per block; more are only counted
LOG_BYTES_MIN = 64 * 1024  # of a stream that is kept: holes in files are not made smaller
RESTORE_NUMBERS = 10_000_000  # of jobs and nodes, left out after a restore: some may be given out already
RESTORE_REVISIONS = 1_000_000_000  # the same of commits: ten days of a thousand a second
STORE_RESERVE_BYTES = 16 << 20  # of disk: results of a hundred thousand tasks, when there is no other room
TAIL_BYTES = 16 * 1024  # of each stream, kept by the server for when the node is gone
TAILS_BYTES_MAX = 1024**3  # of all of them; the oldest go first
BODY_BYTES_MAX = 1024 * 1024  # an API request: before authentication nobody may cost more
TIMEOUT_SECONDS_MAX = 10 * 365 * 24 * 3600  # ten years: above it is a unit mistaken
WALL_LOOK_MS = 60_000  # how soon it is seen that the wall clock jumped over a deadline
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
SCALE_LOOK_MS = 1_000  # between two looks at how large a cluster should be
MOVE_LOOK_MS = 5_000  # between two looks at which jobs can leave a cluster that drains
SCALE_STEP_MAX = 100  # machines asked for at one time: as many are tried out; the next look comes soon
SCALE_NODES_A_LOOK = 100  # nodes of a cluster for each such second between two trials: they cost more
SCALE_SAME_LOOKS = 5  # between two trials of the same that waits: a pause before a retry may be over
PROVIDER_AT_ONCE = 16  # calls of one provider under way: most have a limit on their rate
PROVIDER_CALL_SECONDS = 300.0  # one call of a provider: what takes longer hangs
PROVIDER_LIST_SECONDS = 30.0  # between two looks at which machines there are
PROVIDER_FAILURES_MAX = (
    6  # in a row, without a node: then its cluster has failed, after minutes, at most an hour
)
PROVIDER_PAUSE_LEAST_SECONDS = 0.1  # after a failure of a provider: below it is a busy loop
PROVIDER_PAUSE_LAST_MS = 300_000  # the longest such pause: it doubles each time
CLUSTER_SECONDS_MAX = 7 * 24 * 3600  # to be idle, or to join: above it is a unit mistaken

BATCH_KEYS_MAX = 10_000  # keys looked at for one commit; what is due beyond goes into the next
DECIDE_AGAIN_MAX = (
    1_000  # times one key may be decided in one batch before we call it a loop that never rests
)
LOOKAHEAD_US = 60_000  # work a node may hold beyond its room: two report intervals and a commit
LOOKAHEAD_TASKS_MAX = 256  # the same, in tasks per node
DEMAND_JOBS = 1_000  # the last jobs, by which GPU nodes are judged: a mix that drifts is followed
DEMAND_JOBS_STEP = 128  # jobs after which that is looked at again: it costs some tens of milliseconds
GPUS_MAX = 64  # of one node: more than any machine has, and an attempt's fit one number
NODE_TASKS_MAX = 10_000  # live attempts on one node, also of tasks that ask for nothing
ROWS_KEPT = 1_000  # shapes whose points on every node are kept: 80 MB at ten thousand nodes
SHORT_RUN_US = 50_000  # runs longer than this gain nothing from lookahead
REFUSAL_MS = 30_000  # a node's refusal counts this long unless the node reports a change
RETRY_FIRST_MS = 1_000  # pause before the first retry; doubled each time
RETRY_LAST_MS = 60_000  # the longest pause
SERVICE_LAST_MS = 300_000  # the same of a service, which is tried for ever
SERVICE_LASTED_US = 600_000_000  # a service that ran so long begins anew with the shortest pause
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
STANDBY_AGE_MS = 5_000  # what a standby knows is shown if it is no older; else the leader is asked first
STANDBY_AGE_MAX_MS = 600_000  # nor is it shown at all if it is older: tokens may have been revoked since
SPREAD_MS = 12  # for each node, over which they spread their calls: one costs the server some 4 ms of a core
SERVER_SILENT_MS = 12_000  # of several servers one that hangs is left well before nodes count as lost
HEARTBEAT_MS = 5_000  # at most a third of the grace
STALE_ORDER_MS = 5_000  # a node refuses orders that answer a word it said longer ago than this
EVENTS_KEPT_MS = 24 * 3600 * 1000  # how far back a subscriber may resume
EVENTS_IN_MEMORY = 5_000  # the latest, up to twice as many: served without the store
