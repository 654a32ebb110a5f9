"""`rota` with short-lived certificates: SERVER_LIFE and NODE_LIFE in the environment, in seconds."""

import os
from datetime import timedelta

from rota.cli.main import main
from rota.identity import authority

if __name__ == "__main__":
    authority.SERVER_LIFE = timedelta(seconds=float(os.environ.get("SERVER_LIFE", "86400")))
    authority.NODE_LIFE = timedelta(seconds=float(os.environ.get("NODE_LIFE", "86400")))
    main()
