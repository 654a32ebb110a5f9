"""For all tests: what they need of the machine, what is left out, and settings of hypothesis."""

import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

import rota.wiring  # noqa: F401 - what it tells gRPC is read when that is first imported, here as in our processes
from tests.machine import require

settings.register_profile("rota", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rota")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require(*mark.args)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Nothing is left out silently: the last lines say how many tests, and for which reason."""
    left_out = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    if left_out:
        terminalreporter.section("left out on this machine")
        for reason, tests in left_out.most_common():
            terminalreporter.line(f"{tests:5} {'test' if tests == 1 else 'tests'}: {reason}")
