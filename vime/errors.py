"""What can end a command: an error the user can mend, a run that broke, a signal."""

from __future__ import annotations

import signal


class UserError(Exception):
    """Something the user can mend: a configuration, a file, a missing package. The message names the value, the place and the mend."""

    exit_code = 2


class RunError(Exception):
    """A run that cannot go on. `stage` names what it was doing (placement, engine start, rollout, reward, train, weight sync, checkpoint)."""

    exit_code = 3

    def __init__(self, stage: str, message: str):
        super().__init__(f"{stage}: {message}")
        self.stage = stage
        self.message = message

    def __reduce__(self) -> tuple[type[RunError], tuple[str, str]]:  # Ray pickles exceptions by their args
        return type(self), (self.stage, self.message)


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Not a KeyboardInterrupt, which libraries in between catch and rename."""

    def __init__(self, signum: int):
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = signum
