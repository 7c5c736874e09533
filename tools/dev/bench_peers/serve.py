"""What the peers of tools/dev/bench_engine share: its protocol, and where what they load is kept."""
import hashlib
import json
import pathlib
import sys
import time

MODELS = pathlib.Path(__file__).resolve().parents[3] / "build/peers/models"
CONTEXT, DECODE_STEPS = 128, 8  # As in engine_bench.


def read_config(folder):
    return json.loads((pathlib.Path(folder) / "config.json").read_text())


def model_path(config, name):
    """Where a model of this shape is kept, or is to be written."""
    MODELS.mkdir(parents=True, exist_ok=True)
    return MODELS / f"{hashlib.sha256(json.dumps(config).encode()).hexdigest()[:8]}-{name}"


def serve(peer, rows):
    """Prints one JSON line, then answers every name of `rows` on standard input with the seconds that it took."""
    print(json.dumps({"peer": peer}), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        rows[line.strip()]()
        print(f"{time.perf_counter() - begin:.6f}", flush=True)
