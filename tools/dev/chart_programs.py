"""What the programs themselves say to the flags that the chart takes and to the command lines that it makes.

Each check is a generator of problems.
"""
import pathlib
import re
import subprocess
import tempfile

from chart_checks import ROOT, flags_of

BIN = ROOT / "build/release/bin"


def refusal(program, *flags):
    """What it has against them; empty: nothing."""
    ended = subprocess.run([BIN / program, *flags, "--print-config"], capture_output=True, text=True, timeout=60)
    return ended.stderr.strip() if ended.returncode else ""


def bounds_are_those_of(program, schema, definitions):
    """Types, choices and bounds in a schema of flags."""
    kinds = flags_of(program)
    for name, allowed in schema.items():
        kind, allowed = kinds[name], definitions[allowed["$ref"].rsplit("/", 1)[1]] if "$ref" in allowed else allowed
        if "|" in kind:
            wanted, said = kind.split("|"), [str(choice) for choice in allowed.get("enum", [])]
        elif kind == "BYTES":
            wanted, said = True, allowed["type"] == "string"
            for unit in ("", "B", "K", "M", "G", "KB", "MB", "GB", "Ki", "Mi", "Gi", "KiB", "MiB", "GiB", "TiB"):
                value = f"{2**25}{unit}"
                if re.search(allowed["pattern"], value) and f"--{name}" in refusal(program, f"--{name}={value}"):
                    yield f"{program} does not take --{name}={value}"
        elif kind == "DEVICE":
            uuid = "GPU-8f6a1234-0000-abcd-EF01-0123456789ab"
            devices = ("auto", "cpu", "cuda", "cuda:0", "cuda:31", f"cuda:{uuid}", "cuda:", "cuda:x", f"cuda:{uuid}0",
                       uuid, "gpu")
            wanted = [device for device in devices if not refusal(program, f"--{name}={device}", "--model=m")]
            said = [device for device in devices if re.search(allowed["pattern"], device)]
        elif kind in ("", "URL,..."):
            wanted, said = {"": "boolean", "URL,...": "array"}[kind], allowed["type"]
        else:
            span = re.search(r"want a number from (\S+) to ([^,\s]+)", refusal(program, f"--{name}=x"))
            low, high = map(float, span.groups()) if span else (0, 0)
            whole = "number" in refusal(program, f"--{name}={low + min(high - low, 1) / 2}")
            wanted = ["integer" if whole else "number", low, high] if span else "no answer"
            said = [allowed["type"], allowed.get("minimum"), allowed.get("maximum")]
        if said != wanted:
            yield f"--{name} of {program} is {wanted}, the schema has {said}"


def command_lines_are_taken(release):
    """By the programs; with --insecure-public-listen only if they must have it, and somebody allowed what it leaves
    open."""
    files = {key: text for body in release.of("ConfigMap") for key, text in body["data"].items()}
    for workload in release.workloads:
        with tempfile.TemporaryDirectory() as folder:
            flags = [flag.replace("/etc/tandem", folder) for flag in workload.container["args"]]
            for path in (pathlib.Path(value) for each in flags if (value := each.partition("=")[2]).startswith(folder)):
                path.parent.mkdir(exist_ok=True)
                path.write_text(files.get(path.name, 64 * "0"))
                path.chmod(0o440)
            public = "--insecure-public-listen"
            if said := refusal(workload.program, *flags):
                yield f"{workload}: {said}"
            must = refusal(workload.program, *[flag for flag in flags if flag != public])
        if (public in flags) != ("loopback" in must):
            yield f"{workload}: {public} is {'' if public in flags else 'not '}there, without it: {must or 'nothing is amiss'}"
        is_open = public in flags
        if not workload.is_router:
            is_open = not workload.flag("fleet-secret-file") and not workload.flag("fleet-tls-cert")
        if is_open and not release.value(f"insecure.{'router' if workload.is_router else 'workers'}"):
            yield f"{workload}: is open to everybody, which nobody allowed"
