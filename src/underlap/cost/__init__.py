"""Time and bytes of work: pure functions that know neither plans nor timelines."""
