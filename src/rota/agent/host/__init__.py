"""What this machine has and how busy it is: hardware, container runtimes, load, termination notices."""
