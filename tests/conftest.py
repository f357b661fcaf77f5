"""Settings of all tests."""

from hypothesis import settings

# The same examples on every run: a test that fails for one person fails for all. To explore with fresh ones:
# pytest --hypothesis-profile=fresh. No deadline: how long an example takes says more of the machine's load than of the code.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fresh", derandomize=False, deadline=None)
settings.load_profile("repeatable")
