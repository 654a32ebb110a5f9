"""What was measured while harm was done, as a table at the end: of one process, or of many side by side."""

import pytest

FIGURES = "figures"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        (report.nodeid.rpartition("::test_")[2].replace("_", " "), report.duration, told)
        for state in ("passed", "failed")
        for report in terminalreporter.getreports(state)
        for name, told in report.user_properties
        if name == FIGURES
    ]
    if rows:
        terminalreporter.section("figures")
        for what, seconds, told in rows:
            terminalreporter.write_line(f"{what} ({seconds:.0f} s)\n    {told}")
