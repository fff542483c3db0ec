#!/usr/bin/env python3
"""A subscriber of KV events for scripts/scaleout.py, with pyzmq and msgspec.

usage: scaleout_subscriber.py EVENTS REPLAY TOPIC

The types are those that vLLM 0.33 publishes (vllm/distributed/kv_events.py), and unknown fields are errors. Answers each
line of JSON on standard input with one on standard output.
"""
import json, sys

import msgspec, zmq

END = b"\xff" * 8
PATIENCE = 120_000


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


DECODER = msgspec.msgpack.Decoder(KVEventBatch)


class Tree:
    """What a server holds: by hash, all tokens up to the end of a block, and the groups that have it."""

    def __init__(self):
        self.tokens, self.groups, self.windows, self.size, self.cleared = {}, {}, {}, None, 0

    def apply(self, payload):
        batch = DECODER.decode(payload)
        # Nothing is lost or written in another way.
        assert DECODER.decode(msgspec.msgpack.encode(batch)) == batch and batch.data_parallel_rank == 0 and batch.ts > 1e9
        for event in batch.events:
            match event:
                case AllBlocksCleared():
                    self.tokens, self.groups, self.cleared = {}, {}, self.cleared + 1
                case BlockRemoved():
                    for one in event.block_hashes:
                        self.groups[one].remove(event.group_idx)
                        if not self.groups[one]:
                            del self.groups[one], self.tokens[one]
                case BlockStored():
                    self.store(event)

    def store(self, event):
        size = self.size = event.block_size
        assert event.medium == "GPU" and len(event.token_ids) == size * len(event.block_hashes)
        assert event.kv_cache_spec_kind == ("full_attention" if event.kv_cache_spec_sliding_window is None else "sliding_window")
        self.windows[event.group_idx] = event.kv_cache_spec_sliding_window
        before = () if event.parent_block_hash is None else self.tokens[event.parent_block_hash]
        for index, one in enumerate(event.block_hashes):
            before += tuple(event.token_ids[index * size:(index + 1) * size])
            assert self.tokens.setdefault(one, before) == before
            groups = self.groups.setdefault(one, set())
            assert event.group_idx not in groups
            groups.add(event.group_idx)

    def cached(self, prompt):
        """Tokens of a prompt that the server need not read."""
        held = {tokens: self.groups[one] for one, tokens in self.tokens.items()}
        pages = 0
        groups = []
        while (pages + 1) * self.size <= len(prompt) and (found := held.get(tuple(prompt[:(pages + 1) * self.size]))):
            groups.append(found)
            pages += 1
        for full in range(pages, 0, -1):
            # Of sliding-window layers, the pages that the next token sees.
            first = {group: max(full * self.size + 1 - window, 0) // self.size if window else 0 for group, window in self.windows.items()}
            if all(group in groups[page] for group in first for page in range(first[group], full)):
                return full * self.size
        return 0


def replay(context, endpoint, topic, start):
    """Batches from a sequence number on."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, PATIENCE)
    dealer.connect(endpoint)
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    while True:
        delimiter, name, sequence, payload = dealer.recv_multipart()
        assert delimiter == b""
        if sequence == END:
            assert (name, payload) == (b"", b"")
            dealer.close()
            return
        assert name == topic, name
        yield int.from_bytes(sequence, "big"), payload


def main():
    events, endpoint, topic = sys.argv[1:]
    topic = topic.encode()
    context = zmq.Context()
    live = context.socket(zmq.SUB)
    live.setsockopt(zmq.RCVTIMEO, PATIENCE)
    live.connect(events)
    live.setsockopt(zmq.SUBSCRIBE, b"kv@")
    tree, following = Tree(), 0

    def take(sequence, payload):
        nonlocal following
        if sequence >= following:
            assert sequence == following, f"batch {sequence} instead of {following}"
            tree.apply(payload)
            following += 1

    def follow(batches):
        # A subscription takes a moment; what was published before it is missing.
        while following < batches:
            if live.poll(200):
                name, sequence, payload = live.recv_multipart()
                assert name == topic, name
                number = int.from_bytes(sequence, "big")
                if number > following:
                    for missed in replay(context, endpoint, topic, following):
                        take(*missed)
                take(number, payload)
            else:
                for missed in replay(context, endpoint, topic, following):
                    take(*missed)

    for line in sys.stdin:
        question, answer = json.loads(line), {}
        if "batches" in question:
            follow(question["batches"])
        if "prompt" in question:
            answer["cached"] = tree.cached(question["prompt"])
        if "late" in question:
            other = Tree()
            for _, payload in replay(context, endpoint, topic, 0):
                other.apply(payload)
            blocks = lambda tree: sorted([list(tokens), sorted(tree.groups[one])] for one, tokens in tree.tokens.items())
            answer |= {"late": blocks(other), "blocks": blocks(tree), "cleared": tree.cleared}
        if "hashes" in question:
            answer["hashes"] = list(tree.tokens)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
