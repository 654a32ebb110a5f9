"""JOBS INTO TASKS, ENDED ATTEMPTS INTO RESULTS. Of nodes it reads the names only."""
