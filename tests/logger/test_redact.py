"""Secrets are kept out of what a run writes, and nothing else is."""

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
        "huggingface_token",
        "HUGGINGFACE_HUB_TOKEN",
        "hub_token",
        "hubToken",
        "gh_token",
        "GH_TOKEN",
        "hf_token_2",
        "slack_bot_token_secret",
        "my_company_token",
        "openai_key",
        "anthropic_key",
        "aws_access_key_id",
        "bearer",
        "Authorization",
        "sentry_dsn",
        "dsn",
        "pwd",
        "db_pwd",
        "session_cookie",
        "api_tokens",
        "accesstoken",
        "openaikey",
        "connection_string",
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
        "token_embedding",
        "max_tokens",
        "max_token",
        "tokens_per_step",
        "mask_token",
        "bos_token_id",
        "image_token",
        "vocab_key",
        "rng_key",
        "cache_key",
        "key_bias",
        "monkey",
        "dsnet",
        "step",
    ],
)
def test_names_of_a_models_config_are_not_secret(name):
    """Tokens and keys are everyday words here."""
    assert not is_secret_name(name)


def test_only_text_is_replaced():
    """Numbers and empty values under a secret name reveal nothing and stay, at any depth."""
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


GITHUB = "ghp_" + "a1B2" * 9
"""Looks like a GitHub token, but is not one."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://abcdef123@github.com/me/repo.git", "https://***@github.com/me/repo.git"),
        ("https://me:p@ss@host/x", "https://***@host/x"),
        ("postgresql://me:pw@db/x", "postgresql://***@db/x"),
        ("https://host/data?token=abc&split=train", "https://host/data?token=***&split=train"),
        ("https://host/x?split=a&X-Amz-Signature=abc#top", "https://host/x?split=a&X-Amz-Signature=***#top"),
        ("https://maps/api?key=abc", "https://maps/api?key=***"),
        ("curl -H Authorization: Bearer abcdef123456", "curl -H Authorization: Bearer ***"),
        (f"clone with {GITHUB}, then", "clone with ***, then"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "***"),
        ("sk-proj-Abcdefghijklmnop1234567", "***"),
    ],
)
def test_forms_of_secrets_are_replaced_in_any_text(text, shown):
    """What looks like a secret is replaced under any name, in configs and on command lines; the rest stays."""
    assert redact({"data": [text]}) == {"data": [shown]}
    assert redact_command([text]) == [shown]


@pytest.mark.parametrize(
    "text",
    [
        "ssh://git@github.com/me/repo",
        "https://git@github.com/me/repo",
        "git@github.com:me/repo.git",
        "https://host/a@b",
        "https://host/data?split=train&num_tokens=5&tokenizer=bpe",
        "s3://bucket/key=value/part-0",
        "a bearer of news",
        "sk-learn-linear-regression-model",
        "hf_hub",
    ],
)
def test_other_text_stays(text):
    """Addresses, paths and prose without a secret are kept as they are."""
    assert redact(text) == text
    assert redact_command([text]) == [text]


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
