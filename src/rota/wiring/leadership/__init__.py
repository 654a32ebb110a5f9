"""How a server becomes leader, and what it does as a standby. [I/O]"""
