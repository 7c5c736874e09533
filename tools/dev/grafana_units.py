"""Numbers as Grafana writes them: three digits, in the unit of a panel."""
import math

SECONDS = [(1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1, "s"), (60, "min"), (3600, "hour"), (86400, "day"),
           (604800, "week"), (365.24 * 86400, "year")]
BYTES = [(1, "B"), *[(1024 ** n, f"{letter}iB") for n, letter in enumerate("KMGT", 1)]]
BYTES_A_SECOND = [(1, "B/s"), *[(1000 ** n, f"{letter}B/s") for n, letter in enumerate("kMGT", 1)]]
COUNTS = [(1, ""), (1e3, "K"), (1e6, "Mil"), (1e9, "Bil"), (1e12, "Tri")]
SCALES = {"s": SECONDS, "bytes": BYTES, "Bps": BYTES_A_SECOND, "short": COUNTS, "percentunit": [(.01, "%")],
          "reqps": [(1, "req/s"), (1e3, "K req/s")]}


def scale_of(value, unit):
    """(size, name) of the unit, or of the part or the multiple of it, that the value is written in. A unit that has
    no scale is its own name."""
    scales = SCALES.get(unit, [(1, unit)])
    smallest = scales[0]
    if value == 0:
        return next((scale for scale in scales if scale[0] == 1), smallest)
    return max((scale for scale in scales if scale[0] <= abs(value) * (1 + 1e-9)), default=smallest)


def digits_after_point(number):
    """So that three digits are seen, or all of a whole number."""
    if number == 0 or number == round(number):
        return 0
    return max(0, 2 - math.floor(math.log10(abs(number))))


def joined(number, name):
    return f"{number}{name}" if name == "%" else f"{number} {name}".strip()


def written(value, unit):
    """(number, unit) as two texts: 0.0123 s is ("12.3", "ms")."""
    if not math.isfinite(value):
        return str(value), ""
    size, name = scale_of(value, unit)
    number = value / size
    return f"{number:.{digits_after_point(round(number, 9))}f}", name


def text(value, unit):
    return joined(*written(value, unit))


def tick_step(span, unit, wanted=5):
    """The distance of about so many ticks: of bytes, powers of two."""
    least = span / wanted
    if unit == "bytes":
        return 2.0 ** math.ceil(math.log2(least))
    size = scale_of(span, unit)[0] if unit in ("s", "percentunit") else 1
    magnitude = 10 ** math.floor(math.log10(least / size))
    return size * magnitude * next(step for step in (1, 2, 2.5, 5, 10) if step * magnitude * size >= least * (1 - 1e-9))


def tick_text(value, unit):
    size, name = scale_of(value, unit)
    return joined(f"{round(value / size, 6):g}", name)
