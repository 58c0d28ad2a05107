"""Worker processes of loaders that do not outlive the training."""

import ctypes
import multiprocessing
import os
import signal

_PR_SET_PDEATHSIG = 1


def exit_with_parent(*args: object) -> None:
    """End this process when its parent dies, however it dies. For a loader's `worker_init_fn`; Linux only.

    A training that is killed cannot end its workers; without this they continue, and hold their memory.
    """
    del args
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl"):
        return
    # A process id says nothing by itself: in a container the training has id 1, which elsewhere adopts orphans.
    parent_id, parent = os.getppid(), multiprocessing.parent_process()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    was_adopted = os.getppid() != parent_id
    if was_adopted or (parent is not None and not parent.is_alive()):  # it died before it could be watched
        os._exit(1)
