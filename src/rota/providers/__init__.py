"""WHERE MACHINES COME FROM. Has no idea of tasks."""
