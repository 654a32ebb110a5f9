"""Tools for development: a whole cluster on one machine, and chaos among its nodes. [I/O]"""
