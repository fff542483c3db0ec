"""Open WebUI with the server as its OpenAI connection, and as its Ollama connection if the server has that API, driven
through Open WebUI's own HTTP API: models, a chat, a stream, a tool call, a title."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from shared import ANSWER, KEY, MODEL, QUESTION, URL

START_SECONDS = 180
TIMEOUT_SECONDS = 120
SETTINGS = {
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "a-secret-of-this-test",
    "OPENAI_API_BASE_URL": f"{URL}/v1",
    "OPENAI_API_KEY": KEY,
    "ENABLE_OLLAMA_API": "False",
    # Nothing is downloaded: no embedding model, no speech model, no update check.
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
}
TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


class WebUi:
    def __init__(self, port):
        self.url, self.token = f"http://127.0.0.1:{port}", ""

    def open(self, path, body=None):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=TIMEOUT_SECONDS)

    def json(self, path, body=None):
        with self.open(path, body) as response:
            return json.load(response)

    def wait(self, process, log):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                assert self.json("/health")["status"] is True
                return
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, log.read_text()
                time.sleep(0.5)
        raise AssertionError(f"Open WebUI did not start within {START_SECONDS} s:\n{log.read_text()}")

    def sign_in(self):
        self.token = self.json("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def models(self):
        return [model["id"] for model in self.json("/api/models")["data"]]

    def chat(self, model, content, **more):
        body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": False, **more}
        (choice,) = self.json("/api/chat/completions", body)["choices"]
        return choice

    def stream(self, model, content):
        body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": True}
        with self.open("/api/chat/completions", body) as response:
            lines = [line.decode().strip() for line in response]
        *chunks, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert done == "[DONE]", lines
        choices = [choice for chunk in map(json.loads, chunks) for choice in chunk.get("choices", [])]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


def converse(webui, model):
    assert webui.chat(model, "Hello")["message"]["content"] == ANSWER
    assert webui.stream(model, "Hello") == ANSWER
    choice = webui.chat(model, QUESTION, tools=[TOOL])
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_time"], choice
    title = {"model": model, "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": ANSWER}]}
    assert webui.json("/api/v1/tasks/title/completions", title)["choices"][0]["message"]["content"] == ANSWER


def has_ollama_api():
    try:
        request = urllib.request.Request(f"{URL}/api/tags", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return "models" in json.load(response)
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        return False


def converse_as_ollama(webui):
    # The prefix tells the connection's model from that of the OpenAI connection.
    connection = {"enable": True, "key": KEY, "prefix_id": "ollama"}
    settings = {"ENABLE_OLLAMA_API": True, "OLLAMA_BASE_URLS": [URL], "OLLAMA_API_CONFIGS": {"0": connection}}
    webui.json("/ollama/config/update", settings)
    (model,) = [model for model in webui.models() if model.startswith("ollama.")]
    converse(webui, model)


with tempfile.TemporaryDirectory() as folder, socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    log = Path(folder) / "log"
    command = [Path(sys.executable).with_name("open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **SETTINGS, "DATA_DIR": folder}, stdout=output, stderr=subprocess.STDOUT,
        )
    try:
        webui = WebUi(port)
        webui.wait(process, log)
        webui.sign_in()
        assert webui.models() == [MODEL]
        converse(webui, MODEL)
        if has_ollama_api():
            converse_as_ollama(webui)
        else:
            print("the server has no /api/tags, so the Ollama connection was not tried")
    finally:
        process.kill()
        process.wait()
