"""The client for asyncio: the same classes and names, each call waiting in a thread of its own."""
