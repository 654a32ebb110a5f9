"""The asyncio client: the classes of the synchronous one with the same names; each call runs in a thread."""
