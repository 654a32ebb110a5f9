"""For all tests: property tests take as long as the machine needs."""

from hypothesis import settings

settings.register_profile("rota", deadline=None)
settings.load_profile("rota")
