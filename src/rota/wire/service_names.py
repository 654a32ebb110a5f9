"""Full names of the gRPC services, as in the path of a call."""

AGENT = "rota.v1.Agent"
WATCHER = "rota.v1.Watcher"
CONTROLLER = "rota.v1.Controller"
WORKERS = (
    "jobscheduler.Scheduler",
    "Scheduler",
)  # the second is without its package: some workers call it so
