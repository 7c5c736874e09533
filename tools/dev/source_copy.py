"""A copy of the sources in build/, to make mistakes in."""
import os
import pathlib
import subprocess

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


def build(copy, targets):
    """The end of what the compiler says, or nothing if all went well."""
    # A mistake that comes or goes while its file is compiled must not be kept as what the other one gives.
    done = subprocess.run(["cmake", "--build", "--preset", "release", "--target", *targets], cwd=copy,
                          env=os.environ | {"CCACHE_READONLY": "1"}, capture_output=True, text=True)
    return done.stdout[-2000:] if done.returncode else ""


def sees(program, arguments, timeout, environment=None):
    """True if that test program fails, or does not come to an end."""
    try:
        return subprocess.run([program, *arguments], cwd=program.parents[1], timeout=timeout, capture_output=True,
                              env=os.environ | {"GTEST_FAIL_FAST": "1"} | (environment or {})).returncode != 0
    except subprocess.TimeoutExpired:
        return True
