#!/usr/bin/env python3
"""Measures what clients that are slow, silent or many do to one that behaves, and prints the table of docs/security.md.

usage: scripts/withstand.py PATH-TO-INDRIK MODEL   (`make withstand`)

Every attack runs against a server with default settings, once without and once with an API key, which the attackers do not
have. Meanwhile one client sends chats of eight tokens, one after the other, on a new connection each. Rounds of three seconds
alternate: without the attack, with it. The slowest chat of a round is often due to the machine, so the median of five rounds
is reported. A tiny model shows what the server itself adds. Attackers are a process of their own with the lowest priority:
they stand for other machines, whose processors the server does not share.
"""
import json, os, resource, socket, subprocess, sys, tempfile, threading, time

SECONDS = 3
ROUNDS = 5
KEY = "a-key-of-this-test"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}


class Server:
    def __init__(self, indrik, model, keyed):
        self.log = tempfile.TemporaryFile()
        arguments = [indrik, "serve", "-m", model, "--name", "m", "--port", "0", "--json"]
        arguments += ["--api-key", KEY] if keyed else []
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log)
        url = json.loads(self.read_object())["url"]
        self.port = int(url.rsplit(":", 1)[1].strip("/"))
        self.key = f"Authorization: Bearer {KEY}\r\n" if keyed else ""
        while b" 200 " not in self.once(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 60):
            time.sleep(0.1)

    def read_object(self):
        text = ""
        for line in self.process.stdout:
            text += line.decode()
            try:
                json.loads(text)
                return text
            except ValueError:
                continue
        self.log.seek(0)
        raise SystemExit("withstand: the server did not start:\n" + self.log.read().decode())

    def connect(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def once(self, request, timeout):
        with self.connect(timeout) as stream:
            stream.sendall(request)
            answer = b""
            while part := stream.recv(65536):
                answer += part
            return answer

    def chat(self, key=True, **more):
        body = json.dumps({**CHAT, **more})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{self.key if key else ''}"
        head += f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + body).encode()

    def stop(self):
        self.process.terminate()
        self.process.wait()


def delays(server, seconds):
    """Times of chats and of health checks, one after the other, in seconds."""
    chats, checks, end = [], [], time.monotonic() + seconds
    while time.monotonic() < end or len(chats) < 20:
        start = time.monotonic()
        answer = server.once(server.chat(), 120)
        chats.append(time.monotonic() - start)
        if b" 200 " not in answer[:20]:
            raise SystemExit(f"withstand: a chat of the good client failed: {answer[:300]}")
        start = time.monotonic()
        answer = server.once(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 120)
        checks.append(time.monotonic() - start)
        if b" 200 " not in answer[:20]:
            raise SystemExit(f"withstand: a health check failed: {answer[:300]}")
    return chats, checks


def hold(count, start):
    """An attack that holds `count` connections on which `start` was sent, and opens those again that are closed."""
    def attack(server, stop):
        streams = []
        while not stop.is_set():
            while len(streams) < count and not stop.is_set():
                try:
                    stream = server.connect(5)
                    stream.sendall(start(server))
                    stream.setblocking(False)
                    streams.append(stream)
                except OSError:
                    break
            open_streams = []
            for stream in streams:
                try:
                    if stream.recv(4096) == b"":
                        raise OSError
                    open_streams.append(stream)
                except BlockingIOError:
                    open_streams.append(stream)
                except OSError:
                    stream.close()
            streams = open_streams
            stop.wait(0.2)
        for stream in streams:
            stream.close()
    return attack


def slow_body(server):
    size = 4 << 20
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return (head + f"Content-Length: {size}\r\n\r\n").encode() + b" " * (size - 13)


def flood(threads, request):
    """An attack of requests without pause, on a new connection each."""
    def attack(server, stop):
        def one():
            while not stop.is_set():
                try:
                    server.once(request(server), 5)
                except OSError:
                    stop.wait(0.01)
        workers = [threading.Thread(target=one) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return attack


ATTACKS = [
    ("530 silent connections", hold(530, lambda server: b"")),
    ("530 connections with half a header", hold(530, lambda server: b"POST /v1/chat/completions HT")),
    ("12 bodies of 4 MiB without their last bytes", hold(12, slow_body)),
    ("100 bodies of 1 KiB without their last bytes",
     hold(100, lambda server: slow_body(server)[:200].replace(b"4194304", b"1024"))),
    ("7 streams of 400 tokens that are not read",
     hold(7, lambda server: server.chat(key=False, stream=True, max_tokens=400))),
    ("8 such streams, the whole batch", hold(8, lambda server: server.chat(key=False, stream=True, max_tokens=400))),
    ("16 clients that send wrong paths without pause",
     flood(16, lambda server: b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")),
    ("16 clients that announce 100 GB without pause",
     flood(16, lambda server: b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n"
           b"Content-Type: application/json\r\nConnection: close\r\n\r\n")),
]


class Remote:
    """The port of a server that another process started: all that an attacker has."""
    def __init__(self, port):
        self.port, self.key = port, ""

    connect, once, chat = Server.connect, Server.once, Server.chat


def attack(index, port):
    """Attacks until standard input is closed."""
    os.nice(19)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    ATTACKS[index][1](Remote(port), stop)


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    if sys.argv[1] == "--attack":
        return attack(int(sys.argv[2]), int(sys.argv[3]))
    indrik, model = sys.argv[1:3]
    print("| Attack | Server | Median, undisturbed | Median, meanwhile | Slowest, undisturbed | Slowest, meanwhile | Slowest health check |")
    print("|---|---|---|---|---|---|---|")
    median = lambda times: sorted(times)[len(times) // 2]
    for index, (name, _) in enumerate(ATTACKS):
        for keyed in (False, True):
            server = Server(indrik, model, keyed)
            delays(server, 1)
            undisturbed, meanwhile = [], []
            for _ in range(ROUNDS):
                undisturbed.append(delays(server, SECONDS))
                attacker = subprocess.Popen([sys.executable, __file__, "--attack", str(index), str(server.port)], stdin=subprocess.PIPE)
                time.sleep(1)
                meanwhile.append(delays(server, SECONDS))
                if attacker.poll() is not None:
                    raise SystemExit(f"withstand: the attackers of \"{name}\" ended with {attacker.returncode}")
                attacker.stdin.close()
                attacker.wait()
                # What the server still does for the attackers does not belong to the next round.
                time.sleep(1)
            server.stop()
            middle = lambda rounds: median([time for chats, _ in rounds for time in chats])
            slowest = lambda rounds, which: median([max(times[which]) for times in rounds])
            times = middle(undisturbed), middle(meanwhile), slowest(undisturbed, 0), slowest(meanwhile, 0), slowest(meanwhile, 1)
            kind = "with a key" if keyed else "open"
            print(f"| {name} | {kind} | " + " | ".join(f"{seconds * 1000:.1f} ms" for seconds in times) + " |", flush=True)


main()
