"""HTTP routes: one function for each method and path; the rules are in admission. [I/O]"""
