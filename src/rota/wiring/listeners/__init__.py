"""Ports of a server: sockets, TLS, and HTTP within bounds. [I/O]"""
