import pytest

from trackside.logger.redact import is_secret_name, redact, redact_command


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apiKey",
        "WANDB_API_KEY",
        "openai-api-key",
        "apikey",
        "password",
        "db_password",
        "secret",
        "client_secret",
        "auth_token",
        "authToken",
        "access_token",
        "hf_token",
        "token",
        "private_key",
        "credentials",
    ],
)
def test_secret_names(name):
    """Names of secrets are known in any spelling."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "num_tokens",
        "tokenizer",
        "tokenizer_path",
        "token_dim",
        "pad_token",
        "eos_token",
        "key",
        "key_dim",
        "monitor_key",
        "passes",
        "num_key_value_heads",
        "api_version",
        "author",
        "secretary_dim",
    ],
)
def test_names_of_a_models_config_are_not_secret(name):
    """Tokens and keys are everyday words here."""
    assert not is_secret_name(name)


def test_only_text_is_replaced():
    """Numbers and empty values under a secret name tell nothing and stay, at any depth."""
    config = {
        "api_key": "abc",
        "password": None,
        "secret": "",
        "access_token": 5,
        "credentials": {"user": "me", "ids": ["a", 1]},
        "tools": [{"private_key": "k", "name": "x"}],
        "tokenizer": "bpe",
    }
    assert redact(config) == {
        "api_key": "***",
        "password": None,
        "secret": "",
        "access_token": 5,
        "credentials": {"user": "***", "ids": ["***", 1]},
        "tools": [{"private_key": "***", "name": "x"}],
        "tokenizer": "bpe",
    }
    assert config["api_key"] == "abc"


def test_passwords_in_urls_are_replaced():
    """The rest of the address stays."""
    assert redact({"proxy": "http://me:pw@host:80/x"}) == {"proxy": "http://***@host:80/x"}
    assert redact({"data": "gs://bucket/a:b"}) == {"data": "gs://bucket/a:b"}


def test_command_lines_lose_their_secrets():
    """As an option with `=`, as one that follows, and as an assignment to a nested field."""
    command = ["train.py", "--api-key=abc", "--password", "pw", "--lr", "1", "logger.auth_token=t", "--num_tokens", "5"]
    assert redact_command(command) == [
        "train.py",
        "--api-key=***",
        "--password",
        "***",
        "--lr",
        "1",
        "logger.auth_token=***",
        "--num_tokens",
        "5",
    ]


def test_an_option_after_a_secret_flag_stays():
    """A flag that takes no value does not hide the next one."""
    assert redact_command(["--use-credentials", "--lr", "1"]) == ["--use-credentials", "--lr", "1"]
