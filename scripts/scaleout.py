#!/usr/bin/env python3
"""Tests `indrik serve` behind the gateways of docs/scale-out.md, with the commands of that page (`make scaleout`).

usage: scripts/scaleout.py PATH-TO-INDRIK SMG VLLM-ROUTER PYTHON MODEL [TEST ...]

PYTHON has pyzmq and msgspec.

Two servers with a tiny model, a gateway in front, and clients that hold chats of five turns with eight system prompts.
The commands are those of the page, with another model and free ports. Prints a line per test, and exits with 1 if one
fails. Logs go to target/scaleout.
"""
import http.client, itertools, json, os, random, re, shlex, signal, socket, subprocess, sys, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "target", "scaleout")
PAGE = os.path.join(ROOT, "docs", "scale-out.md")
CLIENTS = 12
PATIENCE = 120


class Failed(Exception):
    pass


def check(condition, message):
    if not condition:
        raise Failed(message)


# --- processes ---------------------------------------------------------------------------------------------------------

def commands():
    """The commands of the page by name: a shell block after `<!-- scaleout: NAME -->`."""
    text = open(PAGE).read()
    blocks = re.findall(r"<!-- scaleout: ([a-z-]+) -->\n```sh\n(.*?)\n```", text, re.S)
    return {name: block.replace("\\\n", " ") for name, block in blocks}


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(what, holds, process=None):
    end = time.monotonic() + PATIENCE
    while not holds():
        check(process is None or process.process.poll() is None, f"{what}: it ended; see {process and process.log}")
        check(time.monotonic() < end, f"waited {PATIENCE} s in vain for: {what}")
        time.sleep(0.05)


class Process:
    started = itertools.count()

    def __init__(self, name, command, environment=()):
        log = os.path.join(LOGS, f"{next(Process.started):02}-{name}.log")
        keep = {key: value for key, value in os.environ.items() if not key.startswith("INDRIK_") or key == "INDRIK_DEVICE"}
        keep["INDRIK_CACHE_DIR"] = os.path.join(LOGS, "cache")
        self.name, self.log = name, log
        with open(log, "w") as output:
            output.write(shlex.join(command) + "\n")
            output.flush()
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env={**keep, **dict(environment)})

    def send(self, number):
        self.process.send_signal(number)

    def wait(self):
        return self.process.wait(PATIENCE)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def get(port, path, timeout=10):
    """Status and body; status 0 if there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def metrics(port):
    """Samples by name; those with labels are added up."""
    status, text = get(port, "/metrics")
    check(status == 200, f"/metrics of port {port}: {status}")
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            samples[name.split("{")[0]] = samples.get(name.split("{")[0], 0) + float(value)
    return samples


def sum_of(port, sample):
    """Value of one sample, 0 if it is not there."""
    lines = get(port, "/metrics")[1].splitlines()
    return sum(float(line[len(sample):]) for line in lines if line.startswith(sample + " "))


class Fleet:
    """Servers, and a gateway in front of them."""

    def __init__(self, tools, gateway, replicas=2, extra=((), ()), faults=(None, None), policy=None):
        self.tools, self.extra = tools, extra
        self.page = commands()
        self.gateway_port, self.gateway_metrics, *self.ports = free_ports(2 + replicas)
        self.servers = [self.start_server(index, faults[index]) for index in range(replicas)]
        for port, server in zip(self.ports, self.servers):
            wait_for(f"server on port {port}", lambda: get(port, "/ready")[0] == 200, server)
        self.gateway = None
        if gateway:
            command = shlex.split(self.with_ports(self.page[gateway]))
            command[0] = tools[command[0]]
            command += ["--prometheus-port", str(self.gateway_metrics), "--log-level", "error"]
            if policy:
                command[command.index("--policy") + 1] = policy
            self.gateway = Process(gateway, command)
            # A gateway answers 503 before its first workers are registered.
            wait_for("all workers of the gateway", lambda: get(self.gateway_port, "/workers")[1].count('"is_healthy":true') == replicas,
                     self.gateway)

    def with_ports(self, command):
        numbers = {"8000": self.gateway_port, "8006": self.ports[0], "8007": self.ports[-1]}
        return re.sub(r"\b(8000|8006|8007)\b", lambda match: str(numbers[match[0]]), command)

    def start_server(self, index, fault=None):
        command = shlex.split(self.page[("first-server", "second-server")[index]])
        # A variable before the command sets the port.
        command = command[command.index("indrik"):]
        command[0] = self.tools["indrik"]
        command[command.index("-m") + 1] = self.tools["model"]
        command += ["--port", str(self.ports[index]), "--name", "m", *self.extra[index]]
        return Process(f"server-{index}", command, {"INDRIK_FAULT": fault}.items() if fault else ())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [self.gateway, *self.servers]:
            if process:
                process.end()


# --- clients -----------------------------------------------------------------------------------------------------------

# The tiny model reads 512 tokens, about as many characters.
SYSTEM = [" ".join([word] * 25) for word in ("red", "tan", "sky", "sea", "oak", "elm", "fir", "ash")]


class Answer:
    """What became of a request. `error` is None if it is complete."""

    def __init__(self):
        self.status = self.error = self.worker = self.retry_after = None
        self.text, self.parts = "", 0
        self.started = time.monotonic()
        self.first = self.ended = None


def complete(port, messages, max_tokens=16, **more):
    """Streams a chat completion. Never tries again."""
    answer = Answer()
    body = {"model": "m", "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True, **more}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer.status, answer.worker = response.status, response.getheader("x-smg-routed-worker-id")
        answer.retry_after = response.getheader("retry-after")
        if response.status != 200:
            answer.error = f"{response.status} {response.read(200).decode(errors='replace')}"
            return answer
        is_done = False
        for line in response:
            data = line.decode().strip()
            if data == "data: [DONE]":
                is_done = True
            elif data.startswith("data: "):
                chunk = json.loads(data[6:])
                if "error" in chunk:
                    answer.error = f"in the stream: {chunk['error']}"
                    return answer
                answer.first = answer.first or time.monotonic()
                answer.parts += 1
                answer.text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        if not is_done:
            answer.error = "the stream ended without [DONE]"
    except (OSError, ValueError, http.client.HTTPException) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.ended = time.monotonic()
        connection.close()
    return answer


def chats(client, turns=5):
    """Endless chats: messages of the next turn; the answer is sent back."""
    for chat in itertools.count():
        messages = [{"role": "system", "content": SYSTEM[(client + chat) % len(SYSTEM)]}]
        for turn in range(turns):
            messages = [*messages, {"role": "user", "content": f"turn {turn} of chat {chat % 3} of {client % 4}"}]
            text = yield messages
            messages = [*messages, {"role": "assistant", "content": text}]


class Load:
    """Clients that chat until they are told to stop."""

    def __init__(self, port, clients=CLIENTS, **options):
        self.port, self.options = port, options
        self.answers, self.requests, self.lock = [], [], threading.Lock()
        self.ending = threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(number,)) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def client(self, number):
        chat = chats(number)
        messages = next(chat)
        while not self.ending.is_set():
            answer = complete(self.port, messages, **self.options)
            with self.lock:
                self.answers.append(answer)
                self.requests.append(messages)
            messages = chat.send(answer.text)

    def count(self):
        with self.lock:
            return len(self.answers)

    def wait_count(self, count):
        wait_for(f"{count} answers", lambda: self.count() >= count)

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()
        return [answer for answer in self.answers if answer.error]


def first_tokens(answers):
    times = sorted(answer.first - answer.started for answer in answers if answer.first)
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return f"first token p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms"


# --- tests -------------------------------------------------------------------------------------------------------------

def rolling_restart(tools, gateway="smg"):
    """0 of at least 1,000 requests fail while both servers are restarted, one after the other."""
    times = []
    with Fleet(tools, gateway) as fleet:
        load = Load(fleet.gateway_port)
        try:
            load.wait_count(200)
            for index, port in enumerate(fleet.ports):
                fleet.servers[index].send(signal.SIGTERM)
                wait_for("/ready to fail", lambda: get(port, "/ready")[0] != 200)
                check(fleet.servers[index].wait() == 0, f"server {index} did not drain: {fleet.servers[index].log}")
                started = time.monotonic()
                fleet.servers[index] = fleet.start_server(index)
                served = lambda: get(port, "/ready")[0] == 200 and metrics(port)["indrik_generation_tokens_total"] > 0
                wait_for(f"server {index} to serve again", served)
                times.append(time.monotonic() - started)
                load.wait_count(load.count() + 200)
            load.wait_count(1000)
        finally:
            failed = load.end()
        check(not failed, f"{len(failed)} of {load.count()} failed: {sorted({one.error for one in failed})[:3]}")
        check(max(times) <= 5, f"a server served again only after {max(times):.1f} s")
        again = " and ".join(f"{seconds:.1f}" for seconds in times)
        return f"0 of {load.count()} failed; served again after {again} s; {first_tokens(load.answers)}"


def kill(tools, gateway="smg"):
    """Only streams that ran on a killed server fail, and the texts of all others are those of one server alone."""
    flags = ("--reproducible",)
    with Fleet(tools, gateway, extra=(flags, flags)) as fleet:
        load = Load(fleet.gateway_port, max_tokens=32)
        try:
            load.wait_count(150)
            running = lambda: json.loads(get(fleet.ports[0], "/v1/loads")[1])["loads"][0]["num_total_reqs"]
            wait_for("streams on the first server", lambda: running() >= 2)
            fleet.servers[0].send(signal.SIGKILL)
            fleet.servers[0].wait()
            load.wait_count(load.count() + 150)
        finally:
            failed = load.end()
        before = [one.error for one in failed if one.first is None]
        check(not before, f"{len(before)} failed before their first byte: {before[:3]}")
        elsewhere = [one for one in failed if one.worker and str(fleet.ports[0]) not in one.worker]
        check(not elsewhere, f"{len(elsewhere)} failed on the server that was not killed")
        check(len(failed) <= CLIENTS, f"{len(failed)} of {load.count()} failed")
        # One server alone, one request at a time.
        pairs = [(request, one.text) for request, one in zip(load.requests, load.answers) if not one.error]
        expected = {}
        for request, text in pairs:
            key = json.dumps(request)
            if key not in expected:
                expected[key] = complete(fleet.ports[1], request, max_tokens=32).text
            check(text == expected[key], f"another text: {text!r} instead of {expected[key]!r}")
        return (f"{len(failed)} of {load.count()} failed, all of them running streams; "
                f"{len(pairs)} texts of {len(expected)} prompts equal those of one server alone")


def device_loss(tools):
    """No request fails when a server loses its device again and again."""
    with Fleet(tools, "smg", faults=("device-lost@300", None)) as fleet:
        load = Load(fleet.gateway_port)
        try:
            lost = lambda: metrics(fleet.ports[0])["indrik_device_lost_total"]
            wait_for("three losses of the device", lambda: lost() >= 3)
            load.wait_count(load.count() + 100)
        finally:
            failed = load.end()
        check(not failed, f"{len(failed)} of {load.count()} failed: {sorted({one.error for one in failed})[:3]}")
        return f"0 of {load.count()} failed while the device was lost {lost():.0f} times; {first_tokens(load.answers)}"


# A server that runs this many sequences and queues none is filled by one request with as many choices: it takes seconds.
CHOICES = 48
SMALL = ("--context", "512", "--max-sequences", str(CHOICES), "--max-choices", str(CHOICES), "--max-queue", "0")


def occupy(fleet, indices):
    """Fills servers with `SMALL` by streams that nobody waits for."""
    body = {"model": "m", "prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True, "n": CHOICES}
    streams = []
    for index in indices:
        connection = http.client.HTTPConnection("127.0.0.1", fleet.ports[index], timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        check(response.status == 200, f"server {index} takes no request: {response.status}")
        response.readline()
        streams.append(connection)
    return streams


def ask_while_full(fleet, indices):
    """The answer to a small request during which these servers were full."""
    running = lambda: [metrics(fleet.ports[index])["indrik_requests_running"] for index in indices]
    for _ in range(20):
        streams = occupy(fleet, indices)
        answer = complete(fleet.gateway_port, [{"role": "user", "content": f"hello {random.random()}"}], 2)
        were_full = running() == [CHOICES] * len(indices)
        for stream in streams:
            stream.close()
        wait_for("servers without requests", lambda: not any(running()))
        if were_full:
            return answer
    raise Failed("servers were not full for long enough")


def queue_full(tools):
    """A full server's 429 stays between it and the gateway; if all are full, it reaches the client with Retry-After."""
    # In turn, so that the gateway tries the full one.
    with Fleet(tools, "smg", extra=(SMALL, ()), policy="round_robin") as fleet:
        answers = [ask_while_full(fleet, [0]) for _ in range(10)]
        check(all(not one.error for one in answers), f"not all succeeded: {[one.error for one in answers if one.error][:3]}")
        refused = sum_of(fleet.ports[0], 'indrik_http_requests_total{outcome="queue_full"}')
        check(refused > 0, "the gateway did not try the full server")
    with Fleet(tools, "smg", extra=(SMALL, SMALL)) as fleet:
        answer = ask_while_full(fleet, [0, 1])
        check(answer.status == 429, f"with both full: {answer.status} {answer.error}")
        check(answer.retry_after, "with both full: 429 without Retry-After")
    return f"10 of 10 answered by the other one (the full one refused {refused:.0f}); both full: 429, Retry-After: {answer.retry_after}"


def cached_share(tools, replicas, pages, policy):
    """Fraction of prompt tokens that were in a prefix cache, with 16 chats of five turns that go on in turns."""
    flags = ("--max-sequences", "16", "--kv-cache-tokens", str(pages * 64))
    with Fleet(tools, "smg", replicas, extra=(flags, flags), policy=policy) as fleet:
        chatting = [[{"role": "system", "content": SYSTEM[number % 8]}] for number in range(16)]
        order = random.Random(1)
        for turn in range(5):
            numbers = list(range(16))
            if turn > 0:
                order.shuffle(numbers)
            for number in numbers:
                question = f"{number} asks {order.randrange(10 ** 12)}"
                chatting[number].append({"role": "user", "content": question})
                answer = complete(fleet.gateway_port, chatting[number], 16)
                check(not answer.error, f"failed: {answer.error}")
                chatting[number].append({"role": "assistant", "content": answer.text})
        samples = [metrics(port) for port in fleet.ports]
        cached = sum(one["indrik_prompt_tokens_cached_total"] for one in samples)
        return cached / (cached + sum(one["indrik_prompt_tokens_total"] for one in samples))


def prefix_share(tools):
    """With caches that hold half of the chats, routing by prefix keeps what one server with twice the pages keeps."""
    # How evenly the gateway distributes the chats varies from run to run.
    aware = sorted(cached_share(tools, 2, PAGES, "cache_aware") for _ in range(3))[1]
    robin = cached_share(tools, 2, PAGES, "round_robin")
    alone = cached_share(tools, 1, 2 * PAGES, "round_robin")
    figures = f"prefix cache hit rate {aware:.3f} with cache_aware (median of three), {robin:.3f} with round_robin, {alone:.3f} with one server of twice the pages"
    check(aware >= 1.3 * robin and aware >= 0.9 * alone, figures)
    return figures


# Pages per server in `prefix_share`.
PAGES = 52

# What the endpoint pickers of Kubernetes read, with the names that they know from vLLM.
NAMES = ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
         "vllm:cache_config_info", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
         "vllm:time_to_first_token_seconds_count", "vllm:time_per_output_token_seconds_count"]


def names(tools):
    """vLLM's metrics are there, with the model's name, and move as they should."""
    with Fleet(tools, None, 1, extra=((*SMALL[:-1], "8"),)) as fleet:
        port = fleet.ports[0]
        text = get(port, "/metrics")[1]
        for name in NAMES:
            check(re.search(rf'^{name}\{{[^}}]*model_name="m"[^}}]*\}} ', text, re.M), f"no {name} with model_name")
        check(re.search(r'cache_config_info\{.*block_size="64",num_gpu_blocks="[1-9]\d*"', text), "no size of the cache")
        idle = metrics(port)
        streams = occupy(fleet, [0])
        waiting = threading.Thread(target=complete, args=(port, [{"role": "user", "content": "next"}], 2))
        waiting.start()
        wait_for("a waiting request", lambda: metrics(port)["vllm:num_requests_waiting"] == 1)
        busy = metrics(port)
        check(busy["vllm:num_requests_running"] == CHOICES, "running requests do not show")
        check(0 < busy["vllm:kv_cache_usage_perc"] <= 1, "the KV cache in use does not show")
        for stream in streams:
            stream.close()
        waiting.join()
        wait_for("no request", lambda: metrics(port)["vllm:num_requests_running"] == 0)
        question = [{"role": "user", "content": SYSTEM[0] * 2}]
        for _ in range(2):
            check(not complete(port, question).error, "a request failed")
        after = metrics(port)
        check(after["vllm:prefix_cache_hits_total"] > busy["vllm:prefix_cache_hits_total"], "no hit of the prefix cache")
        for name in NAMES[5:]:
            check(after[name] > idle[name], f"{name} did not grow")
        check(after["vllm:num_requests_waiting"] == after["vllm:kv_cache_usage_perc"] == 0, "it is not idle again")
        return f"{len(NAMES)} metrics found, all of them moved"


# Tokens of a page.
PAGE_TOKENS = 64


def follow_events(tools):
    """A subscriber with pyzmq and msgspec knows what two servers hold, from the beginning, late, and after a lost device."""
    words = shlex.split(commands()["kv-events"])
    names = [words.index("--kv-events"), words.index("--kv-events-replay")]
    events = free_ports(4)

    def sockets(index):
        flags = list(words[names[0]:])
        for name, port in zip(("--kv-events", "--kv-events-replay"), events[2 * index:]):
            flags[flags.index(name) + 1] = f"127.0.0.1:{port}"
        # Memory for a few texts, so that pages are evicted.
        return (*flags, "--max-sequences", "4", "--kv-cache-tokens", str(24 * PAGE_TOKENS))

    with Fleet(tools, None, extra=(sockets(0), sockets(1)), faults=("device-lost@500", None)) as fleet:
        followers = []
        for index, port in enumerate(fleet.ports):
            command = [tools["python"], os.path.join(ROOT, "scripts", "scaleout_subscriber.py"),
                       *(f"tcp://127.0.0.1:{socket}" for socket in events[2 * index:2 * index + 2]), f"kv@127.0.0.1:{port}@m"]
            followers.append(Subscriber(command, index))
        try:
            return ask_and_compare(fleet, followers)
        finally:
            for follower in followers:
                follower.end()


class Subscriber:
    """scripts/scaleout_subscriber.py as a process that answers one line with one line."""

    def __init__(self, command, index):
        log = open(os.path.join(LOGS, f"subscriber-{index}.log"), "w")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        check(answer, f"a subscriber ended; see {LOGS}/subscriber-*.log")
        return json.loads(answer)

    def end(self):
        self.process.kill()
        self.process.wait()


def cached_tokens(port, prompt):
    """Tokens of a prompt, given as token ids, that the server had in its prefix cache."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = {"model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    check(response.status == 200, f"{response.status} {text[:200]}")
    return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def ask_and_compare(fleet, followers):
    """Asks for texts in turn; each time the subscriber says before how much of the prompt is cached."""
    texts = [[10 + (at * 7 + family * 29) % 150 for at in range(300 + 20 * family)] for family in range(6)]
    order, compared, hits, lost = random.Random(1), 0, 0, 0
    losses = lambda port: metrics(port)["indrik_device_lost_total"]
    published = lambda port: (metrics(port)["indrik_kv_events_pending"], int(metrics(port)["indrik_kv_events_batches_total"]))
    for number in itertools.count():
        index = number % 2
        port, follower = fleet.ports[index], followers[index]
        text = order.choice(texts)
        cached_tokens(port, text)
        # Whole pages of a text, then tokens that no other text has: nothing else is cached.
        other = order.choice(texts)
        pages = order.choice([len(other) // PAGE_TOKENS, 1 + order.randrange(4)])
        prompt = other[:pages * PAGE_TOKENS] + [170 + number % 140] * 3
        wait_for("events to be published", lambda: published(port)[0] == 0)
        before = losses(port)
        expected = follower.ask(batches=published(port)[1], prompt=prompt)["cached"]
        cached = cached_tokens(port, prompt)
        if losses(port) == before:
            check(cached == expected, f"the server had {cached} tokens of a prompt and its events said {expected}")
            compared, hits = compared + 1, hits + (cached > 0)
        lost = losses(fleet.ports[0])
        if compared >= 200 and lost >= 2:
            break
        check(number < 2000, f"{lost} losses of the device after {number} requests")
    check(hits >= 20 and hits <= compared - 20, f"{hits} of {compared} prompts were cached")
    ends = []
    for port, follower in zip(fleet.ports, followers):
        wait_for("events to be published", lambda: published(port)[0] == 0)
        ends.append(follower.ask(batches=published(port)[1], late=True))
    check(all(end["late"] == end["blocks"] for end in ends), f"another tree by a replay: {ends}")
    check(ends[0]["cleared"] > lost and ends[1]["cleared"] == 1, f"AllBlocksCleared: {ends}, with {lost} lost devices")
    check(all(metrics(port)["indrik_kv_events_dropped_subscribers_total"] == 0 for port in fleet.ports), "a subscriber was dropped")
    # Equal texts have equal hashes on both servers.
    for port, follower in zip(fleet.ports, followers):
        cached_tokens(port, texts[0])
        wait_for("events to be published", lambda: published(port)[0] == 0)
        follower.ask(batches=published(port)[1])
    shared = set(followers[0].ask(hashes=True)["hashes"]) & set(followers[1].ask(hashes=True)["hashes"])
    check(len(shared) >= len(texts[0]) // PAGE_TOKENS, f"the servers have {len(shared)} hashes in common")
    batches = sum(published(port)[1] for port in fleet.ports)
    return (f"{compared} of {compared} prompts as the events said ({hits} hits), {batches} batches, {lost:.0f} lost devices; "
            f"the same after a replay; {len(shared)} hashes in common")


def cpu_seconds(process):
    """Processor time that a process has used."""
    fields = open(f"/proc/{process.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process):
    """Resident memory of a process in MB: all, and what no other process shares."""
    lines = open(f"/proc/{process.process.pid}/smaps_rollup").read().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines}
    return sizes["Rss"], sizes["Private_Clean"] + sizes["Private_Dirty"]


def costs(tools):
    """What a gateway and a second server process cost on one machine. Measures, and checks nothing."""
    with Fleet(tools, "smg") as fleet:
        per_request = {}
        for max_tokens in (8, 32):
            load = Load(fleet.gateway_port, clients=4, max_tokens=max_tokens, ignore_eos=True)
            load.wait_count(100)
            before = load.count(), cpu_seconds(fleet.gateway)
            load.wait_count(before[0] + 1000)
            requests, seconds = load.count() - before[0], cpu_seconds(fleet.gateway) - before[1]
            check(not load.end(), "a request failed")
            per_request[max_tokens] = seconds / requests
        per_token = (per_request[32] - per_request[8]) / 24
        sizes = {one.name: memory(one) for one in [*fleet.servers, fleet.gateway]}
        sizes = "; ".join(f"{name} {rss:.0f} MB resident, {own:.0f} MB its own" for name, (rss, own) in sizes.items())
        return (f"the gateway takes {per_request[8] * 1000:.2f} ms of a core per request of 8 tokens, {per_token * 1e6:.0f} us per "
                f"further token; {sizes}")


TESTS = {
    "names": names,
    "kv events": follow_events,
    "queue full": queue_full,
    "device loss": device_loss,
    "prefix share": prefix_share,
    "kill -9": kill,
    "rolling restart": rolling_restart,
    "vllm-router: rolling restart": lambda tools: rolling_restart(tools, "vllm-router"),
    "vllm-router: kill -9": lambda tools: kill(tools, "vllm-router"),
}

# Run by name only.
MEASUREMENTS = {"costs": costs}


def main():
    indrik, smg, router, python, model, *selected = sys.argv[1:]
    tools = {"indrik": os.path.abspath(indrik), "smg": smg, "vllm-router": router, "python": python, "model": os.path.abspath(model)}
    os.makedirs(LOGS, exist_ok=True)
    failed = []
    for name in selected or TESTS:
        started = time.monotonic()
        try:
            result = {**TESTS, **MEASUREMENTS}[name](tools)
        except Failed as failure:
            failed.append(name)
            result = f"FAILED: {failure}"
        print(f"{name}: {result} ({time.monotonic() - started:.0f} s)", flush=True)
    if failed:
        raise SystemExit(f"scaleout: failed: {', '.join(failed)}; logs are in {LOGS}")


if __name__ == "__main__":
    main()
