"""MESSAGES INTO MODEL AND BACK. The only place that knows both."""
