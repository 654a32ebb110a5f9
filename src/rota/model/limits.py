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
ENV_BYTES_MAX = 128 * 1024  # sent to every node once per job
IMAGE_LENGTH_MAX = 512  # longer than any registry allows
MOUNTS_MAX = 32  # of a container: each is one more argument of its runtime
CONTAINER_ENV_BYTES_MAX = 60_000  # one variable of a container: runtimes read a line of 64 KiB at most
WHERE_MAX = 32  # constraints of a job: each is one pass over the nodes
CPU_MILLI_MAX = 100_000 * 1000  # more cores than any machine has: a typing error
AMOUNT_MAX = 2**60  # an exbibyte: sums of a million of them still fit into 80 bits of Python, columns into 64
RESTARTS_MAX = 10_000  # tasks restarted by one wish: each is named in its record
JOBS_AGE_MS = 7 * 24 * 3600 * 1000  # how long an ended job is remembered, unless a server or job says so
JOBS_KEPT = 100_000  # ended jobs, unless a server says so: some hundred MB, read again in seconds
KEEP_SECONDS_MAX = 10 * 365 * 24 * 3600  # ten years: above it is a unit mistaken
GONE_MS = 24 * 3600 * 1000  # how long a submit that is repeated is known after its job has expired
GONE_MAX = 1_000_000  # the same, in jobs: each is two short records
EXPIRE_BATCH = 200  # jobs that expire in one commit: nobody else waits for more
SIGNALS_KEPT = 16  # of a job: a node that was away for more hears of the last ones only
RETRIES_MAX = 1000  # a try number fits 16 bits, with room for the cluster's own faults
TRIES_MAX = 60_000  # what the 16-bit column holds; beyond it the task is held as failed
PRIORITY_MAX = 100  # 0 to 100, 50 is ordinary
PREEMPT_MARGIN = 10  # by how much a priority must be higher for running work to give way to it
NOMINATED_MS = 60_000  # how long room stays promised to the job for which others had to give way
EVICTIONS_MAX = 100  # tasks for which others are made to give way in one round
BACKFILL_JOBS_MAX = 1_000  # jobs of one line that are looked at behind one that may not start yet
SUPERSEDED_KEPT = 64  # older attempts kept per block; more are only counted
LOG_BYTES_MIN = 64 * 1024  # of a stream that is kept: holes in files are not made smaller
TAIL_BYTES = 16 * 1024  # of each stream, kept by the server for when the node is gone
TAILS_BYTES_MAX = 1024**3  # of all of them; the oldest go first
BODY_BYTES_MAX = 1024 * 1024  # an API request: before authentication nobody may cost more
TIMEOUT_SECONDS_MAX = 10 * 365 * 24 * 3600  # ten years: above it is a unit mistaken
DRAIN_SECONDS_MAX = 30 * 24 * 3600  # a month to run empty: above it is a unit mistaken
MEMORY_LIMIT_MIN = 2**20  # with less memory no program could even be executed
CPU_LIMIT_MILLI_MIN = 10  # the smallest quota that the kernel takes: 1 ms of each 100 ms
PIDS_MAX = 2**22  # as many processes as Linux ever has numbers for
GRACE_SECONDS_MAX = 24 * 3600  # a day to stop: above it is a unit mistaken

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
REFUSAL_MS = 30_000  # a node's refusal of a shape counts this long unless the node reports a change
RETRY_FIRST_MS = 1_000  # pause before the first retry; doubled each time
RETRY_LAST_MS = 60_000  # the longest pause
STALL_MS = 5_000  # a gap in our own ticks beyond this is our stall, not the nodes' silence
TICK_MS = 1_000  # the driver looks at the clock at least this often, so that a stall is seen
SUSPECT_MS = 15_000  # silence on an open stream: one heartbeat and a half missed
LOST_MS = 30_000  # silence after which a node's work is started elsewhere
BEAT_MS = 2_000  # a node says something at least this often: orders that answer an old word are refused
REPORT_LEAST_MS = 1_000  # between two looks at how busy a node is: what is asked more often is noise
REPORT_MOST_MS = 60_000  # the same, idle: what is older says nothing about now
REPORTS_PER_SECOND = 2_000  # of all nodes together: each costs the server some tens of microseconds
REPORT_POINTS = 5  # of a hundred: a change of cpu or memory by so much is told at once
DISKS_MAX = 16  # of a node, in its statistics
HEARTBEAT_MS = 5_000  # at most a third of the grace
STALE_ORDER_MS = 5_000  # a node refuses orders that answer a word it said longer ago than this
EVENTS_KEPT_MS = 24 * 3600 * 1000  # how far back a subscriber may resume
EVENTS_IN_MEMORY = 20_000  # recent rows served without the store
