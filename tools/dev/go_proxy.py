"""Whether Go modules can be had here."""
import shutil
import subprocess


def answers():
    if shutil.which("go") is None:
        return False
    # A list of versions is never taken from the cache.
    return subprocess.run(["go", "list", "-m", "-versions", "github.com/yannh/kubeconform"], cwd="/",
                          capture_output=True, timeout=120).returncode == 0
