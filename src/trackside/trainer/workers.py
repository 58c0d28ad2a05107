"""Worker processes of loaders that do not outlive the training."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def exit_with_parent(*args: object) -> None:
    """End this process when its parent dies, however it dies. For a loader's `worker_init_fn`; Linux only.

    A training that is killed cannot end its workers; without this they go on, and hold their memory.
    """
    del args
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:  # the parent was dead before
            os._exit(1)
