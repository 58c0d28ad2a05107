"""How much of the time between calls a process computes, where it is the device itself, as with PyTorch on CPU.

There, what the loop's own code computes between two calls, such as a forward pass, keeps the device as busy as a call
does. While that code sleeps, reads a file or waits for something else, the device idles, and so it does while the loop
waits for data, whoever makes it.
"""

from collections.abc import Mapping

from trackside.profiling.ledger_totals import OTHER, PARTS


class HostComputing:
    """Says how much of each gap between two calls was computing.

    The processor's time is read in some of the gaps only, where calls are short. The others are taken to be like these.
    """

    def __init__(self) -> None:
        self._shares: dict[str, tuple[float, int]] = {}
        """The mean share of computing in gaps that were seen, and how many, by part."""

    def of_gap(self, gap: Mapping[str, float], computed: Mapping[str, float] | None) -> dict[str, float]:
        """How long the process computed in the loop's own code, by part.

        Args:
            gap: How long the host was in which part.
            computed: What processors were used for there, by part; None if nobody saw. Several threads may have used
                several of them.
        """
        own = {part: seconds for part, seconds in gap.items() if seconds > 0 and (part == OTHER or part not in PARTS)}
        return {part: seconds * self._share(part, seconds, computed) for part, seconds in own.items()}

    def _share(self, part: str, seconds: float, computed: Mapping[str, float] | None) -> float:
        mean, number = self._shares.get(part, (1.0, 0))
        if computed is None:
            return mean
        share = min(computed.get(part, 0.0) / seconds, 1.0)
        self._shares[part] = (mean * number + share) / (number + 1), number + 1
        return share
