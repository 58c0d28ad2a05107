"""For users' own tests: a training loop that must not compile again."""

from trackside.testing.recompiles import assert_no_recompiles

__all__ = ["assert_no_recompiles"]
