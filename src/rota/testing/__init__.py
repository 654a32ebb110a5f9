"""WHAT TESTS SHARE. Contract suites and builders, for plugins too."""
