"""HOW A COMMAND IS STARTED. Has no idea of jobs."""
