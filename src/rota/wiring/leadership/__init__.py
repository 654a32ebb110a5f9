"""How a server comes to lead, and what it does while another one leads. [I/O]"""
