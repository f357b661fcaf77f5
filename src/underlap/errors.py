"""The errors that a user of underlap can meet.

    UnderlapError                    anything below; the command line prints it as one line, exit code 2
      InputError                     a file or folder cannot be used as given
        NotATraceError               readable, but no trace that underlap knows
        UnreadableError              missing, empty, damaged beyond use, or no permission
      OptionError                    an option whose value is wrong or does not fit the input
      ScheduleError                  operations that wait for one another, or for one that does not exist
      PlanError                      a plan contradicts itself
      RunError                       ranks that ran a plan failed, disagreed or were lost; exit code 1
        ToldElsewhereError           the same, where another rank of the job says it; exit code 1, and no line
      MissingExtraError              an optional package is needed for what was asked

A message says what was found, where, what was expected and what to do. Bugs of our own are `assert`s, not these.
"""


class UnderlapError(Exception):
    """Base of all errors that underlap raises on purpose."""


class InputError(UnderlapError, ValueError):
    """A file or folder cannot be used as given."""


class NotATraceError(InputError):
    """The input is readable, but it is no trace that underlap knows."""


class UnreadableError(InputError):
    """The input is missing, empty, damaged beyond use, or may not be read."""


class OptionError(UnderlapError, ValueError):
    """An option has a wrong value, or does not fit the input."""


class ScheduleError(UnderlapError, ValueError):
    """Operations wait for one another, or for one that does not exist."""


class PlanError(UnderlapError, ValueError):
    """A plan contradicts itself: it reads what nobody wrote, uses what is still in flight, or its ranks do not agree."""


class RunError(UnderlapError):
    """Ranks that ran a plan failed, disagreed, or were lost."""


class ToldElsewhereError(RunError):
    """A rank of a job failed, and another one says why: one line for all."""


class MissingExtraError(UnderlapError, ImportError):
    """An optional package is needed for what was asked."""
