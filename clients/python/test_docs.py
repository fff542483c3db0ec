"""Runs the examples of docs/serving.md verbatim."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TIMEOUT_SECONDS, MODEL, URL

DOCS = Path(__file__).parents[2] / "docs" / "serving.md"
# Folder of the npm packages; empty without Node.
NODE = os.environ.get("CLIENTS_NODE")

# A code block with the comment before it, which says whether to run it and what it prints.
BLOCK = re.compile(r"(?:<!-- (?P<what>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def examples(title="Clients"):
    section = DOCS.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    for found in BLOCK.finditer(section):
        what, language, code = found.group("what", "language", "code")
        assert what, f"no run comment before: {code}"
        if not what.startswith("not run: "):
            verb, _, prints = what.partition(", prints: ")
            assert verb == "run", f"unknown comment: {what}"
            line = DOCS.read_text()[: DOCS.read_text().index(code)].count("\n")
            yield pytest.param(language, code, prints, id=f"{language}-at-line-{line}")


def runner(language, folder):
    """The interpreter of a language, and the file to write the example to."""
    if language == "sh":
        if not shutil.which("curl"):
            missing("curl")
        return ["bash", "-e"], folder / "example.sh"
    if language == "python":
        return [sys.executable], folder / "example.py"
    if language == "ts":
        if not NODE:
            missing("Node")
        # The examples are valid JavaScript. Node resolves packages relative to the file.
        return ["node"], Path(NODE) / "example.mjs"
    raise AssertionError(f"no interpreter for {language}")


def missing(what):
    assert os.environ.get("CI") != "true", f"{what} is not installed"
    pytest.skip(f"{what} is not installed")


@pytest.mark.parametrize(("language", "code", "prints"), list(examples()))
def test_example_runs(language, code, prints, tmp_path):
    run_example(language, code, prints, tmp_path, {"http://127.0.0.1:8006": URL, "gemma-3-4b-it": MODEL}, TIMEOUT_SECONDS)


def run_example(language, code, prints, folder, names, timeout):
    """Run an example with server and model names replaced."""
    command, file = runner(language, folder)
    for name, replacement in names.items():
        assert name in code or "/v1/models" in code, f"the example does not contain {name}"
        code = code.replace(name, replacement)
    file.write_text(code)
    ran = subprocess.run([*command, file], capture_output=True, text=True, timeout=timeout)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip(), "no output"
    assert prints in ran.stdout


def test_every_language_has_examples():
    languages = {example.values[0] for example in examples()}
    assert languages == {"sh", "python", "ts"}
