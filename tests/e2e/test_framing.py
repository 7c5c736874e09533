"""Requests that are cut, repeated, contradictory and broken on the way, at both of the router's addresses and a
worker's. What HTTP/1.1 means is told by h11, HTTP/2 is spoken by hpack and hyperframe."""

import concurrent.futures
import random
import socket

import h11
import hpack
import httpx
import pytest
from hyperframe import frame as h2

SEED = random.SystemRandom().randrange(10**9)
BODY = b'{"model": "default", "prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0}'
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REFUSED = "not HTTP/1.1"  # Instead of the status 400: what is wrong is not the request that it is.
WAIT = 20  # Seconds for an answer that must come.


@pytest.fixture
def rng(request):
    print(f"seed {SEED}")
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture
def undisturbed(hybrid):
    """What others ask while strange things are sent, and the processes, stay what they were."""
    def answers():
        return hybrid.post("/v1/completions", {"model": "default", "prompt": "And God said", "max_tokens": 8,
                                               "temperature": 0, "return_token_ids": True}).json()["choices"]
    pids = [hybrid.pid(name) for name in ("router", "hybrid-0")]
    want = answers()
    yield lambda: answers() == want
    assert answers() == want
    assert [hybrid.pid(name) for name in ("router", "hybrid-0")] == pids
    hybrid.wait_idle()


# ---- HTTP/1.1 ----

def chunked(rng, body):
    out = b""
    while body:
        size = rng.randrange(1, len(body) + 1)
        extension = rng.choice([b"", b"", b";a", b";a=b", b';a="b c"', b";" + b"x" * rng.randrange(300)])
        digits = rng.choice([b"%x", b"%X", b"0%x"]) % size
        out += digits + extension + b"\r\n" + body[:size] + rng.choice([b"\r\n"] * 9 + [b"\n"])
        body = body[size:]
    trailer = rng.choice([b"", b"", b"x-trailer: 1\r\n", b"content-length: 3\r\n"])
    return out + b"0\r\n" + trailer + b"\r\n"


def one_request(rng, name, inner=True):
    """A request that says its name, by and large as it should be."""
    method, target = rng.choice([(b"GET", b"/v1/models"), (b"GET", b"/health"), (b"POST", b"/v1/completions"),
                                 (b"POST", b"/v1/completions"), (b"POST", b"/none")])
    version = rng.choice([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0"])
    fields = [b"host: localhost", b"x-request-id: " + name, b"content-type: application/json"]
    body = BODY if method == b"POST" else b""
    if body and inner and rng.random() < 0.2:  # What another reader of the same bytes would take for a request.
        body += b"\r\n\r\n" + one_request(rng, b"inner-" + name, inner=False)
    lengths = {"right": [b"content-length: %d" % len(body)],
               "wrong": [b"content-length: %d" % rng.choice([0, 1, len(body) + 1, 2**31, 2**63, 2**64 + len(body)])],
               "odd": [b"content-length: " + rng.choice([b"+%d", b"-%d", b"0x%x", b"%d ", b"%d,", b" %d"]) % len(body)],
               "two": [b"content-length: %d" % len(body), b"content-length: %d" % rng.choice([0, len(body)])],
               "chunked": [b"transfer-encoding: chunked"],
               "both": [b"transfer-encoding: chunked", b"content-length: %d" % len(body)],
               "coded": [b"transfer-encoding: " + rng.choice([b"gzip, chunked", b"identity", b"chunked, chunked",
                                                              b"xchunked", b"Chunked", b"chunked "])],
               "none": []}
    kind = rng.choice(["right"] * 6 + ["chunked"] * 4 + list(lengths) if body else ["none"] * 6 + list(lengths))
    fields += lengths[kind]
    if kind in ("chunked", "both", "coded"):
        body = chunked(rng, body)
    if rng.random() < 0.2:
        fields.append(rng.choice([b"connection: close", b"connection: keep-alive", b"expect: 100-continue",
                                  b"upgrade: h2c", b"x: " + b"y" * rng.randrange(2000), b"folded: a\r\n b",
                                  b"space : 1", b": empty", b"nul: \0", b"bare: \r1", b"none"]))
    if version == b"HTTP/1.0":  # Some keep such a connection, and h11 does not.
        fields = [field for field in fields if field != b"connection: keep-alive"]
    rng.shuffle(fields)
    end = rng.choice([b"\r\n"] * 20 + [b"\n"])
    return method + b" " + target + b" " + version + end + end.join(fields) + end + end + body


def broken(rng, data):
    """With up to three bytes changed, lost or repeated."""
    data = bytearray(data)
    for _ in range(rng.choice([0, 0, 1, 3])):
        at = rng.randrange(len(data))
        data[at:at + rng.randrange(2)] = rng.choice([b"", b"\r", b"\n", b"\0", b" ", b":", b"0", bytes(data[at:at + 9])])
    return bytes(data)


def meant(data):
    """The names of the requests that h11 reads out of `data`, up to what it refuses; did it refuse something?"""
    names, reader = [], h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    reader.receive_data(data)
    try:
        while True:
            event = reader.next_event()
            if isinstance(event, h11.Request):
                name = dict(event.headers).get(b"x-request-id")
            elif isinstance(event, h11.EndOfMessage):
                names.append(name)
                reader.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
                reader.send(h11.EndOfMessage())
                if reader.our_state is not h11.DONE or reader.their_state is not h11.DONE:
                    return names, False  # The connection is over.
                reader.start_next_cycle()
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                return names, False
    except h11.RemoteProtocolError:
        return names, True


def answered(connection, count):
    """(status, name) of `count` answers and of what else comes at once; has the other side ended? After a refusal it
    must."""
    data, answers, rest = b"", [], b""
    while True:
        owed = rest or len(answers) < count or answers[-1:] and answers[-1][0] == REFUSED
        connection.settimeout(WAIT if owed else 0.02)
        try:
            got = connection.recv(65536)
        except ConnectionError:
            got = b""
        except TimeoutError:
            assert not owed, f"{count} answers are owed, {answers} came, and then {rest!r}"
            return answers, False
        if not got:
            assert not rest, f"the end of an answer is missing: {rest!r}"
            return answers, True
        data += got
        answers, rest = complete_answers(data)


def complete_answers(data):
    answers = []
    while data:
        head, separator, rest = data.partition(b"\r\n\r\n")
        if not separator:
            break
        lines = head.split(b"\r\n")
        version, status, *_ = lines[0].split(b" ")
        assert version == b"HTTP/1.1", lines
        fields = dict(line.split(b": ", 1) for line in lines[1:])
        if status == b"100":
            data = rest
            continue
        fields = {key.lower(): value for key, value in fields.items()}
        size = int(fields.get(b"content-length", 0))
        if len(rest) < size:
            break
        answers.append((REFUSED if REFUSED.encode() in rest[:size] else int(status), fields[b"x-request-id"]))
        data = rest[size:]
    return answers, data


def usable(name):
    """Any other name is replaced."""
    return name and len(name) <= 128 and all(32 < byte < 127 for byte in name)


def some_requests(rng, case):
    return broken(rng, b"".join(one_request(rng, b"case-%d-%d" % (case, i)) for i in range(rng.choice([1, 1, 2, 4]))))


def checked(check, cases, undisturbed):
    """check() of each case: some at once, since most of what each does is wait for what does not come."""
    results = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for begin in range(0, len(cases), 100):
            running = pool.map(check, cases[begin:begin + 100])
            assert undisturbed()
            results += running
    return results


def test_requests_are_what_another_reader_of_http_takes_them_for(hybrid, undisturbed, rng, full):
    def cut(data):
        ends = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 5])))
        return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)])]

    def check(parts):
        data = b"".join(parts)
        names, wrong = meant(data)
        with socket.create_connection(hybrid.http.split(":")) as connection:
            for part in parts:
                try:
                    connection.sendall(part)
                except ConnectionError:
                    break  # It was refused, and the rest is nobody's.
            answers, over = answered(connection, len(names))
        # What we answer, h11 has read as a request too, in that order; we may refuse more than it does, but then
        # nothing of that connection is read any further.
        for i, (status, name) in enumerate(answers):
            known = i < len(names) and (names[i] == name or not usable(names[i]))
            assert known or (i == len(answers) - 1 and over and status in (REFUSED, 403, 413, 431, 501)), (data, names, answers)
        if not over:
            assert len(answers) >= len(names), (data, names, answers)
        return len(names), wrong

    cases = [cut(some_requests(rng, case)) for case in range(20_000 if full else 500)]
    complete, refused = map(sum, zip(*checked(check, cases, undisturbed)))
    assert complete > 100 and refused > 50, "the cases are too strange, or not strange enough"


# ---- HTTP/2 ----

def random_frames(rng, encoder, path):
    frames = []
    for stream in range(1, 2 * rng.randrange(1, 6), 2):
        fields = [(":method", "POST"), (":scheme", "http"), (":path", rng.choice([path, "/none", "*", ""])),
                  (":authority", "localhost"), ("content-type", rng.choice(["application/grpc", "text/html"])),
                  ("te", "trailers")]
        if rng.random() < 0.3:
            fields.append(rng.choice([("x" * rng.randrange(1, 9000), "y"), (":late", "1"), ("Upper", "1"),
                                      ("grpc-timeout", rng.choice(["1S", "-1S", "9" * 30 + "H"])),
                                      ("grpc-encoding", "gzip"), ("connection", "close")]))
        rng.random() < 0.1 and fields.pop(0)
        block = encoder.encode(fields)
        headers = h2.HeadersFrame(stream, data=block)
        rng.random() < 0.8 and headers.flags.add("END_HEADERS")
        rng.random() < 0.2 and headers.flags.add("END_STREAM")
        frames.append(headers)
        message = rng.randbytes(rng.randrange(64))
        length = rng.choice([len(message), len(message), 0, 2**31, 2**32 - 1])
        data = h2.DataFrame(stream, data=rng.choice([b"\0", b"\1", b"\7"]) + length.to_bytes(4, "big") + message)
        rng.random() < 0.5 and data.flags.add("END_STREAM")
        frames.append(data)
    for _ in range(rng.randrange(6)):
        stream = rng.choice([0, 1, 3, 2, 2**31 - 1])
        frames.insert(rng.randrange(len(frames) + 1), rng.choice([
            h2.RstStreamFrame(stream or 1, error_code=rng.randrange(20)),
            h2.PingFrame(0, opaque_data=rng.randbytes(8)),
            h2.WindowUpdateFrame(stream, window_increment=rng.choice([1, 2**31 - 1])),
            h2.SettingsFrame(0, settings={rng.randrange(1, 9): rng.choice([0, 1, 2**31, 2**32 - 1])}),
            h2.ContinuationFrame(stream or 1, data=rng.randbytes(20)),
            h2.PriorityFrame(stream or 1, depends_on=stream, stream_weight=7),
            h2.GoAwayFrame(0, last_stream_id=stream),
        ]))
    return [frame.serialize() for frame in frames]


def read_frames(connection):
    """What comes until the other side ends the connection or has nothing more to say, as frames."""
    data, kinds = b"", []
    connection.settimeout(0.05)
    try:
        while got := connection.recv(65536):
            data += got
    except (TimeoutError, ConnectionError):
        pass
    while len(data) >= 9:
        frame, length = h2.Frame.parse_frame_header(memoryview(data[:9]))
        if len(data) < 9 + length:
            break
        frame.parse_body(memoryview(data[9:9 + length]))
        kinds.append(type(frame))
        data = data[9 + length:]
    return kinds


@pytest.mark.parametrize("address, path", [("router", "/tandem.v1.Inference/Generate"),
                                           ("worker", "/tandem.v1.Worker/Session")])
def test_broken_http2_disturbs_nobody(hybrid, undisturbed, rng, full, address, path):
    target = hybrid.grpc if address == "router" else hybrid.worker_address("hybrid-0")

    def case():
        data = broken(rng, b"".join(random_frames(rng, hpack.Encoder(), path)))
        return rng.choice([PREFACE] * 9 + [broken(rng, PREFACE)]) + h2.SettingsFrame(0).serialize() + data

    def is_answered(data):
        with socket.create_connection(target.split(":")) as connection:
            try:
                connection.sendall(data)
                return h2.HeadersFrame in read_frames(connection)
            except ConnectionError:
                return False

    answers = sum(checked(is_answered, [case() for _ in range(5_000 if full else 150)], undisturbed))
    assert answers > 10, "nothing was sensible enough for an answer"


def test_http1_and_http2_at_each_others_addresses_are_told_so(hybrid, undisturbed):
    with socket.create_connection(hybrid.http.split(":")) as connection:
        connection.sendall(PREFACE + h2.SettingsFrame(0).serialize())
        answers, over = answered(connection, 1)
        assert over and [status for status, _ in answers] == [REFUSED]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{hybrid.grpc}/health", timeout=WAIT)
