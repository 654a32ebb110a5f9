"""Settings that libraries read at import, so this module is imported before any of them. [I/O]"""

import os
import sys

# gRPC's own lines on stderr are no JSON, and report as errors what is ordinary, such as a GOAWAY of a server
# that stops. What matters comes as an exception, and is logged with its reason.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # we spawn, we never fork

# structlog imports rich where it is installed, for tracebacks in colour. Servers and agents write JSON lines,
# and without rich they start a tenth of a second sooner.
if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # how Python marks a module that cannot be imported
    import structlog  # noqa: F401

    del sys.modules["rich"]
