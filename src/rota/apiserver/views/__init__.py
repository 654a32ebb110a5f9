"""Entries of the mirror -> JSON as the API shows it.

They run in `Engine.read`, between two commits and on the event loop: no view sees an uncommitted state, and a
slow one delays every other request.
"""
