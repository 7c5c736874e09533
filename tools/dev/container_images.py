"""The images of deploy/images, built with buildah on a Debian made by mmdebstrap. All is under build/images."""
import os
import pathlib
import shutil
import subprocess
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build/images"
TOOLS = ["podman", "buildah", "runc", "mmdebstrap"]
# The defaults exceed what a container without CAP_SYS_RESOURCE may have.
CONTAINERS_CONF = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


def run(*command, **more):
    """What it printed; fails with what it complained about."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def storage():
    return ["--root", WORK / "overlay", "--runroot", WORK / "run", "--storage-driver", "overlay"]


def podman(*arguments, **more):
    return run("podman", *storage(), *arguments, **more)


def can_be_made():
    """Whether this is root on a Debian, and may make namespaces."""
    return os.geteuid() == 0 and shutil.which("apt-get") and \
        subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode == 0


def prepare():
    """Installs what is missing by name, and makes the folder."""
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if missing:
        run(ROOT / "tools/dev/apt_install", *missing)
    (WORK / "tmp").mkdir(parents=True, exist_ok=True)
    (WORK / "containers.conf").write_text(CONTAINERS_CONF)
    os.environ |= {"CONTAINERS_CONF": str(WORK / "containers.conf"), "TMPDIR": str(WORK / "tmp")}


def make_base():
    """This machine's Debian, as small as it goes, as the image tandem-base."""
    if "localhost/tandem-base" in podman("images", "--format", "{{.Repository}}"):
        return
    settings, sources = WORK / "apt.conf", WORK / "sources"
    settings.write_text("".join(line + "\n" for line in run("apt-config", "dump").splitlines()
                                if line.startswith(("Acquire::http", "Acquire::Check-", "Acquire::Retries"))))
    sources.write_text(run("apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) main",
                           "Created-By: Packages", "Origin: Debian", "Component: main"))
    suite = run("sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME").strip()
    run("mmdebstrap", "--quiet", "--variant=minbase", f"--aptopt={settings}", suite, WORK / "base.tar", sources)
    podman("import", "-q", WORK / "base.tar", "tandem-base")
    (WORK / "base.tar").unlink()


def build(target, binaries="given"):
    """The image tandem-TARGET; its size as a text. `binaries`: as in deploy/images/Dockerfile."""
    run("buildah", *storage(), "bud", "--isolation", "chroot", "--layers", "--build-arg", "BASE=localhost/tandem-base",
        "--build-arg", f"BINARIES={binaries}", "-f", "deploy/images/Dockerfile", "--target", target,
        "-t", f"tandem-{target}", ".", cwd=ROOT)
    listed = podman("images", "--format", "{{.Repository}} {{.Size}}").splitlines()
    return next(line.split(" ", 1)[1] for line in listed if line.startswith(f"localhost/tandem-{target} "))


def import_files(name, files, *changes):
    """An image of a few files alone. `files`: sources, files or folders, by path in the image."""
    archive = WORK / "import.tar"
    with tarfile.open(archive, "w") as tar:
        for path, source in files.items():
            tar.add(pathlib.Path(source).resolve(), path)
    podman("import", "--quiet", *[word for change in changes for word in ("--change", change)], archive, name)
    archive.unlink()
