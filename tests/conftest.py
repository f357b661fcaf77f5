"""Settings of all tests."""

from hypothesis import settings

# The same examples on every run: a test that fails for one person fails for all. To explore with fresh ones:
# pytest --hypothesis-profile=fresh
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("fresh", derandomize=False)
settings.load_profile("repeatable")
