"""What the tests share: clients of the servers that scripts/clients.sh starts."""

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


# The real model, and how requests call it.
URL = setting("CLIENTS_URL")
MODEL = setting("CLIENTS_MODEL")
# A tiny model of the same name that answers one request at a time, none of which may wait, and asks for a key.
STRICT_URL = setting("CLIENTS_STRICT_URL")
STRICT_KEY = setting("CLIENTS_STRICT_KEY")

# Whatever these tests ask for takes less on a busy machine.
LONG = 60


def options(url=URL, key="none"):
    """A retry would hide what the first answer was."""
    return {"base_url": f"{url}/v1", "api_key": key, "timeout": LONG, "max_retries": 0}


def metric(name, url=URL):
    with urllib.request.urlopen(f"{url}/metrics", timeout=LONG) as page:
        lines = [line.split() for line in page.read().decode().splitlines()]
    return next(float(value) for key, *rest in lines if key == f"indrik_{name}" for value in rest)


def until(holds):
    """Waits until something is true."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.02)


@pytest.fixture
def client():
    with openai.OpenAI(**options()) as client:
        yield client


@pytest.fixture
def strict():
    with openai.OpenAI(**options(STRICT_URL, STRICT_KEY)) as client:
        yield client


def say(text):
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


# The smallest Gemma is no assistant: it says the question again. An assistant says the name, too, so that the answers of
# both end there, after some tokens.
QUESTION = say("What is the capital of France?")
END = "France"


@pytest.fixture
def greedy(client):
    """The most probable answer to a conversation."""

    def answer(messages=QUESTION, **more):
        return client.chat.completions.create(
            **{"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 10, **more}
        )

    return answer


@pytest.fixture
def go_on(client):
    """How a text most probably goes on."""

    def text(prompt, **more):
        return client.completions.create(
            **{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}
        )

    return text
