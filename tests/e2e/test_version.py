"""The commit in what a program says of itself."""

import re
import subprocess

import pytest

from server import BIN, ROOT


def commit_of(folder, output):
    """As the build asks for it; the source that it writes is at `output`."""
    subprocess.run(["cmake", f"-DSOURCE_DIR={folder}", f"-DOUTPUT={output}", "-P", ROOT / "cmake/commit.cmake"], check=True)
    return re.search(r'= "(.*)";', output.read_text())[1]


def git(folder, *arguments):
    subprocess.run(["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e", *arguments], check=True, capture_output=True)


def test_a_checkout_is_named_and_nothing_else_is(tmp_path):
    checkout, output = tmp_path / "checkout", tmp_path / "commit.cc"
    tarball = checkout / "tarball"  # Unpacked in a checkout of something else.
    tarball.mkdir(parents=True)
    assert commit_of(checkout, output) == ""
    (checkout / "file").write_text("one")
    git(checkout, "init")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "one")
    git(checkout, "tag", "-a", "-m", "a name is no commit", "v1")
    commit = commit_of(checkout, output)
    assert re.fullmatch("[0-9a-f]{12}", commit)
    assert commit_of(tarball, tmp_path / "other.cc") == ""
    written = output.stat().st_mtime_ns
    assert commit_of(checkout, output) == commit and output.stat().st_mtime_ns == written  # Nothing is built anew.
    (checkout / "file").write_text("two")
    assert commit_of(checkout, output) == f"{commit}-dirty"


@pytest.mark.parametrize("program", ["tandem", "tandem-router", "tandem-worker"])
def test_a_program_says_which_commit_it_is(program):
    line = subprocess.run([BIN / program, "--version"], check=True, capture_output=True, text=True).stdout
    built_in_checkout = (ROOT / ".git").exists()
    assert re.fullmatch(rf"{program} \S+ \({'commit [0-9a-f]{12}(-dirty)?, ' if built_in_checkout else ''}(no )?CUDA.*\)\n", line)
