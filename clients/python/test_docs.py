"""The examples of docs/serving.md, as they stand there"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LONG, MODEL, URL

DOCS = Path(__file__).parents[2] / "docs" / "serving.md"
# The npm packages lie here, empty where there is no Node.
NODE = os.environ.get("CLIENTS_NODE")

# A block of the section, with the comment before it that says what to do with it.
BLOCK = re.compile(r"(?:<!-- (?P<what>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def examples(title="Clients"):
    section = DOCS.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    for found in BLOCK.finditer(section):
        what, language, code = found.group("what", "language", "code")
        assert what, f"say before it whether it is run: {code}"
        if not what.startswith("not run: "):
            verb, _, prints = what.partition(", prints: ")
            assert verb == "run", f"what is that: {what}"
            line = DOCS.read_text()[: DOCS.read_text().index(code)].count("\n")
            yield pytest.param(language, code, prints, id=f"{language}-at-line-{line}")


def runner(language, folder):
    """What runs a language, and where its files are put."""
    if language == "sh":
        if not shutil.which("curl"):
            missing("curl")
        return ["bash", "-e"], folder / "example.sh"
    if language == "python":
        return [sys.executable], folder / "example.py"
    if language == "ts":
        if not NODE:
            missing("Node")
        # Without types of its own it is JavaScript as it stands. It looks for its packages beside itself.
        return ["node"], Path(NODE) / "example.mjs"
    raise AssertionError(f"nothing here runs {language}")


def missing(what):
    assert os.environ.get("CI") != "true", f"no {what} here"
    pytest.skip(f"no {what} here")


@pytest.mark.parametrize(("language", "code", "prints"), list(examples()))
def test_an_example_runs(language, code, prints, tmp_path):
    run_example(language, code, prints, tmp_path, {"http://127.0.0.1:8006": URL, "gemma-3-4b-it": MODEL}, LONG)


def run_example(language, code, prints, folder, names, within):
    """Runs an example, with other names for the server and the model."""
    command, file = runner(language, folder)
    for name, instead in names.items():
        assert name in code or "/v1/models" in code, "it asks another server"
        code = code.replace(name, instead)
    file.write_text(code)
    ran = subprocess.run([*command, file], capture_output=True, text=True, timeout=within)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip(), "it prints nothing"
    assert prints in ran.stdout


def test_there_are_examples_in_all_languages():
    languages = {example.values[0] for example in examples()}
    assert languages == {"sh", "python", "ts"}
