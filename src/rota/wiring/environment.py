"""Settings that gRPC reads when it is first imported; so this module is imported before all others. [I/O]"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # we spawn, we never fork
