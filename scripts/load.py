#!/usr/bin/env python3
"""Measures a server under load: bursts of concurrent streams with random prompts of one length.

    indrik serve -m gemma3:27b --max-sequences 64 --context 1024
    scripts/load.py --requests 64 --prompt 430 --tokens 128

Prints, per burst, the throughput of completions, and of prompts and completions together, the time to first token (TTFT)
and the mean inter-token latency (ITL). Prompts are random token ids, different in every request and burst, so that the
prefix cache never hits. The first burst after a server's start includes the recording of programs.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import urllib.parse
import urllib.request


class Stream:
    """One streamed completion, and when its texts arrived."""

    def __init__(self, url, model, prompt, tokens):
        self.url = urllib.parse.urlsplit(url)
        self.tokens = tokens
        self.body = json.dumps(
            {
                "model": model,
                "prompt": prompt,
                "max_tokens": tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        self.times = []
        self.usage = None

    async def run(self):
        reader, writer = await asyncio.open_connection(self.url.hostname, self.url.port or 80)
        head = [
            "POST /v1/completions HTTP/1.1",
            f"Host: {self.url.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + self.body)
        status = (await reader.readline()).decode().strip()
        if " 200 " not in status:
            lines = (await reader.read()).decode().splitlines()
            raise RuntimeError(": ".join([status, *lines[-1:]]))
        async for line in reader:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"])
            self.usage = event.get("usage") or self.usage
            if any(choice["text"] for choice in event["choices"]):
                self.times.append(time.monotonic())
        writer.close()
        if not self.times or not self.usage or self.usage["completion_tokens"] != self.tokens:
            raise RuntimeError(f"{self.tokens} tokens were asked for, and the stream ended with {self.usage}")


async def burst(arguments, model):
    def prompt():
        return [random.randint(arguments.min_token_id, arguments.max_token_id) for _ in range(arguments.prompt)]

    streams = [Stream(arguments.url, model, prompt(), arguments.tokens) for _ in range(arguments.requests)]
    start = time.monotonic()
    await asyncio.gather(*(stream.run() for stream in streams))
    seconds = max(stream.times[-1] for stream in streams) - start
    generated = sum(stream.usage["completion_tokens"] for stream in streams)
    prompts = sum(stream.usage["prompt_tokens"] for stream in streams)
    ttft = [stream.times[0] - start for stream in streams]
    itl = [(stream.times[-1] - stream.times[0]) / max(arguments.tokens - 1, 1) for stream in streams]
    return {
        "seconds": round(seconds, 3),
        "generated_tokens_per_second": round(generated / seconds, 1),
        "tokens_per_second": round((generated + prompts) / seconds, 1),
        "ttft_p50_s": round(statistics.median(ttft), 3),
        "ttft_max_s": round(max(ttft), 3),
        "itl_mean_ms": round(statistics.mean(itl) * 1000, 2),
    }


async def measure(arguments):
    with urllib.request.urlopen(arguments.url + "/v1/models") as response:
        model = arguments.model or json.load(response)["data"][0]["id"]
    for _ in range(arguments.bursts):
        result = await burst(arguments, model)
        if arguments.json:
            print(json.dumps(result), flush=True)
            continue
        print(
            f"{result['seconds']:.2f} s: {result['generated_tokens_per_second']} generated tok/s, "
            f"{result['tokens_per_second']} with prompts; TTFT p50 {result['ttft_p50_s']} s, "
            f"max {result['ttft_max_s']} s; ITL {result['itl_mean_ms']} ms",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8006", help="the server, without /v1")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--requests", type=int, default=64, help="concurrent requests per burst")
    parser.add_argument("--prompt", type=int, default=430, help="tokens per prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per completion")
    parser.add_argument("--bursts", type=int, default=3, help="bursts, one after the other")
    parser.add_argument("--min-token-id", type=int, default=300, help="lowest token id in prompts")
    parser.add_argument("--max-token-id", type=int, default=30000, help="highest token id in prompts")
    parser.add_argument("--json", action="store_true", help="print an object per burst")
    try:
        asyncio.run(measure(parser.parse_args()))
    except (OSError, RuntimeError) as error:
        sys.exit(f"load: {error}")


if __name__ == "__main__":
    main()
