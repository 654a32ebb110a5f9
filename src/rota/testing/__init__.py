"""What tests share: contract suites, builders and local clusters, for plugins too."""
