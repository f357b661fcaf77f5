"""Settings of all tests."""

from hypothesis import settings

# The same examples on every run: a test that fails for one person fails for all. To explore with fresh ones:
# pytest --hypothesis-profile=fresh
# No deadline: on a busy machine it fails whatever happens to wait for a core.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fresh", derandomize=False, deadline=None)
settings.load_profile("repeatable")
