"""Controllers: jobs into tasks, ended attempts into retries and results. Of nodes they read only names."""
