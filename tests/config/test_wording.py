"""How config errors name what was probably meant."""

from trackside.config.wording import did_you_mean


def test_another_case_is_the_closest_name():
    """A name that differs only by case is suggested before one that differs by a letter."""
    assert did_you_mean("adamW", ["adam", "adamw"]) == " Did you mean 'adamw'?"
    assert did_you_mean("SGD", ["adam", "sgd"]) == " Did you mean 'sgd'?"


def test_a_misspelt_name_is_found_in_its_own_spelling():
    """The suggestion is spelled as the name is."""
    assert did_you_mean("filelogerconfig", ["FileLoggerConfig", "LoggerConfig"]) == " Did you mean 'FileLoggerConfig'?"


def test_nothing_close_is_no_suggestion():
    """Without a close name there is no sentence."""
    assert did_you_mean("zzz", ["adam", "sgd"]) == ""
