"""Full names of the gRPC services, as they stand in the path of a call."""

AGENT = "rota.v1.Agent"
WATCHER = "rota.v1.Watcher"
CONTROLLER = "rota.v1.Controller"
WORKERS = ("jobscheduler.Scheduler", "Scheduler")  # the second without a package, as some workers call it
