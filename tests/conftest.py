"""For all tests: property tests take as long as they need; Ctrl-C works however the tests were started."""

import signal

from hypothesis import HealthCheck, settings

import rota.wiring  # noqa: F401 - what it tells gRPC is read when that is first imported, here as in our processes

settings.register_profile("rota", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rota")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
