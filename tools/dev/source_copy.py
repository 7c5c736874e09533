"""A copy of the sources in build/, to make mistakes in."""
import os
import pathlib
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def refresh(copy):
    """Everything that git has or would have, as it is; what did not change keeps its time."""
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.splitlines()
    for name in files:
        source, target = ROOT / name, copy / name
        if not source.is_file() or source.is_symlink():
            continue
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)


def configure(copy, *options):
    # A mistake may leave a variable unused.
    subprocess.run(["cmake", "--preset", "release", "-DTANDEM_WERROR=OFF", *options], cwd=copy, check=True,
                   stdout=subprocess.DEVNULL)


def build(copy, targets, progress=False):
    """The end of what the compiler says, or nothing if all went well. `progress`: every ten seconds a line that says
    how far it is."""
    said, told_s = [], time.monotonic()
    with subprocess.Popen(["cmake", "--build", "--preset", "release", "--target", *targets], cwd=copy, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as builds:
        for line in builds.stdout:
            said.append(line)
            if progress and (step := re.match(r"\[\d+/\d+\]", line)) and time.monotonic() - told_s >= 10:
                print(f"building {step[0]}", flush=True)
                told_s = time.monotonic()
    return "".join(said)[-2000:] if builds.returncode else ""


def sees(program, arguments, timeout, environment=None):
    """True if that test program fails, or does not come to an end."""
    try:
        return subprocess.run([program, *arguments], cwd=program.parents[1], timeout=timeout, capture_output=True,
                              env=os.environ | {"GTEST_FAIL_FAST": "1"} | (environment or {})).returncode != 0
    except subprocess.TimeoutExpired:
        return True
