"""Writes the archive of images that nodes have: the project's under two tags, a model with a shell, and the pause
image that holds a pod's namespaces.

usage: images.py ARCHIVE
"""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "dev"))
import container_images as images
import usage

TAGS = ["0.1.0", "next"]


def main(archive):
    images.prepare()
    images.make_base()
    names = []
    for program in ("tandem-router", "tandem-worker"):
        images.build(program.removeprefix("tandem-"))
        for tag in TAGS:
            names.append(f"docker.io/library/{program}:{tag}")
            images.podman("tag", f"localhost/{program}:latest", names[-1])
    names.append("tandem.local/pause:1")
    images.import_files(names[-1], {"/pause": "/usr/bin/catatonit"}, 'ENTRYPOINT ["/pause", "-P"]')
    names.append("tandem.local/model:1")
    images.import_files(names[-1], {"/bin/sh": "/bin/busybox", "/bin/cp": "/bin/busybox",
                                    "/model": images.ROOT / "tests/data/demo_model"})
    pathlib.Path(archive).unlink(missing_ok=True)
    images.podman("save", "--quiet", "--format", "docker-archive", "--multi-image-archive", "-o", archive, *names)


if __name__ == "__main__":
    main(*usage.read(__doc__, least=1, most=1))
