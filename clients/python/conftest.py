"""Shared fixtures: clients of the servers that scripts/clients.sh starts."""

import os
import time
import urllib.request

import openai
import pytest


def setting(name):
    value = os.environ.get(name)
    if not value:
        pytest.exit(f"{name} is not set: run scripts/clients.sh, which starts the servers", returncode=1)
    return value


# The real model and its name in requests.
URL = setting("CLIENTS_URL")
MODEL = setting("CLIENTS_MODEL")
# A tiny model of the same name, with one sequence, no queue and an API key.
STRICT_URL = setting("CLIENTS_STRICT_URL")
STRICT_KEY = setting("CLIENTS_STRICT_KEY")
# A tiny model that takes images.
VISION_URL = setting("CLIENTS_VISION_URL")

# Upper bound for any request of these tests on a busy machine.
TIMEOUT_SECONDS = 60


def options(url=URL, key="none"):
    """Without retries, which would hide the first response."""
    return {"base_url": f"{url}/v1", "api_key": key, "timeout": TIMEOUT_SECONDS, "max_retries": 0}


def metric(name, url=URL):
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_SECONDS) as page:
        lines = [line.split() for line in page.read().decode().splitlines()]
    return next(float(value) for key, *rest in lines if key == f"indrik_{name}" for value in rest)


def until(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


@pytest.fixture
def client():
    with openai.OpenAI(**options()) as client:
        yield client


@pytest.fixture
def vision():
    with openai.OpenAI(**options(VISION_URL)) as client:
        yield client


@pytest.fixture
def strict():
    with openai.OpenAI(**options(STRICT_URL, STRICT_KEY)) as client:
        yield client


def say(text):
    """A conversation with one user message."""
    return [{"role": "user", "content": text}]


# The base model repeats the question, an assistant answers it; both mention France, so that this stop string ends either
# completion after a few tokens.
QUESTION = say("What is the capital of France?")
END = "France"


@pytest.fixture
def greedy(client):
    """Chat completion at temperature 0."""

    def answer(messages=QUESTION, **more):
        return client.chat.completions.create(
            **{"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 10, **more}
        )

    return answer


@pytest.fixture
def complete(client):
    """Text completion at temperature 0."""

    def text(prompt, **more):
        return client.completions.create(
            **{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}
        )

    return text
