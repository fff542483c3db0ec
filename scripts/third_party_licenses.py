#!/usr/bin/env python3
"""Licence texts of everything that is linked into the binary, for distribution with it.

    scripts/third_party_licenses.py [--zig FILE] > THIRD-PARTY-LICENSES

Reads the licence files that each crate ships in Cargo's registry; crates with identical texts share one copy. Crates
that only run during the build (the shader compiler, build scripts) are left out; proc macros are kept, since the code
they generate is compiled in. Fails if a crate has no licence file: such a crate needs a text of its own first.

    --zig FILE   licence of Zig, if its linker and C runtime parts were used
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def run(*command):
    result = subprocess.run(command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE)
    if result.returncode != 0:
        sys.exit(f"third_party_licenses: `{' '.join(command)}` failed; see above")
    return result.stdout


def linked_crates():
    """Packages from a registry that the binary depends on, as objects of `cargo metadata`, sorted by name."""
    options = ["--package", "indrik-cli", "--edges", "normal", "--target", TARGET]
    tree = run("cargo", "tree", "--locked", *options, "--prefix", "none", "--format", "{p}")
    linked = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET))
    packages = [
        package
        for package in metadata["packages"]
        if package["source"] and (package["name"], "v" + package["version"]) in linked
    ]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def licence_files(folder):
    return sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.match(path.name))


def tidy(text):
    """Text with Unix line ends and no trailing blanks."""
    return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").strip("\n").split("\n"))


def standard_library():
    """Licence texts of Rust's standard library, which is linked statically."""
    folder = Path(run("rustc", "--print", "sysroot").strip()) / "share/doc/rust"
    # COPYRIGHT-library.html lists the library's own dependencies with their texts.
    page = folder / "COPYRIGHT-library.html"
    if not page.is_file():
        sys.exit(f"third_party_licenses: {page} is missing: install the toolchain with rustup")
    text = re.sub(r"<(head|script|style)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", "", text)
    for entity, character in {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&#x27;": "'", "&amp;": "&"}.items():
        text = text.replace(entity, character)
    text = re.sub(r"\n[ \t]*(\n[ \t]*)+", "\n\n", text)
    return tidy(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zig", type=Path, metavar="FILE", help="licence of Zig")
    arguments = parser.parse_args()

    texts = {}  # words of a text -> the text and its crates; copies differ in indentation and line breaks
    missing = []
    crates = linked_crates()
    for package in crates:
        files = licence_files(Path(package["manifest_path"]).parent)
        if not files:
            missing.append(f"{package['name']} {package['version']} ({package['license']}, {package['repository']})")
        for path in files:
            text = tidy(path.read_text(encoding="utf-8", errors="replace"))
            _, users = texts.setdefault(" ".join(text.split()), (text, []))
            if package not in users:
                users.append(package)
    if missing:
        sys.exit("third_party_licenses: no licence file in the package of " + "; ".join(missing))

    rule = "=" * 80
    out = ["Software that is linked into the indrik binary, and its licences.", ""]
    width = max(len(f"{package['name']} {package['version']}") for package in crates)
    for package in crates:
        out.append(f"{package['name'] + ' ' + package['version']:<{width}}  {package['license']}")
    out.append(f"{'Rust standard library':<{width}}  MIT OR Apache-2.0, and others named below")
    if arguments.zig:
        out.append(f"{'Zig compiler runtime':<{width}}  MIT")
        out.append(f"{'LLVM libunwind':<{width}}  Apache-2.0 WITH LLVM-exception")
    for text, users in sorted(texts.values(), key=lambda entry: (entry[1][0]["name"], entry[0])):
        out += ["", rule, ", ".join(f"{package['name']} {package['version']}" for package in users), rule, "", text]
    out += ["", rule, "Rust standard library", rule, "", standard_library()]
    if arguments.zig:
        text = tidy(arguments.zig.read_text(encoding="utf-8"))
        out += ["", rule, "Zig compiler runtime", rule, "", text]
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
