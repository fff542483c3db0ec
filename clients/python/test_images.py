"""Images in chat messages, with a tiny model of random weights."""

import base64
import struct
import zlib

import openai
import pytest

from conftest import VISION_URL, metric


def png(width, height, colour):
    """A picture of one colour."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(colour) * width for _ in range(height))
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def image(data, kind="image/png"):
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


RED, BLUE = (255, 0, 0), (0, 0, 255)


def question(*parts):
    return {"role": "user", "content": [*parts, {"type": "text", "text": "a"}]}


def ask(client, messages):
    return client.chat.completions.create(model="vision", messages=messages, max_tokens=4, temperature=0)


def test_the_answer_depends_on_the_picture(vision):
    def logprobs(colour):
        reply = vision.chat.completions.create(
            model="vision", messages=[question(image(png(9, 5, colour)))], max_tokens=2, temperature=0, logprobs=True
        )
        return [token.logprob for token in reply.choices[0].logprobs.content]

    red = logprobs(RED)
    assert logprobs(RED) == pytest.approx(red, abs=1e-4)
    assert logprobs(BLUE) != pytest.approx(red, abs=1e-4)


def test_usage_counts_image_tokens(vision):
    tokens = [
        ask(vision, [question(*[image(png(8, 8, (number, 7, 7))) for number in range(count)])]).usage.prompt_tokens
        for count in range(3)
    ]
    # Of each image: its soft tokens, and the text around them.
    assert tokens[1] - tokens[0] > 4
    assert tokens[2] - tokens[1] == tokens[1] - tokens[0]


def test_the_second_turn_reads_only_what_is_new(vision):
    first = [question(image(png(30, 20, (12, 200, 34))))]
    reply = ask(vision, first)
    read = metric("prompt_tokens_total", VISION_URL)
    answer = {"role": "assistant", "content": reply.choices[0].message.content or "b"}
    second = ask(vision, [*first, answer, {"role": "user", "content": "c"}])
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= reply.usage.prompt_tokens - 1
    assert metric("prompt_tokens_total", VISION_URL) - read == second.usage.prompt_tokens - cached


@pytest.mark.parametrize(
    "part",
    [
        image(png(8, 8, RED)[:40]),
        image(png(8, 8, RED), "image/jpeg"),
        image(b"GIF89a"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,!!!"}},
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    ],
    ids=["truncated", "wrong type", "no pixels", "base64", "link-local", "file"],
)
def test_bad_images_are_named(vision, part):
    with pytest.raises(openai.BadRequestError) as error:
        ask(vision, [question(part)])
    assert error.value.param == "messages[0].content[0].image_url"


def test_fifty_images_are_too_many(vision):
    with pytest.raises(openai.BadRequestError, match="16"):
        ask(vision, [question(*[image(png(4, 4, RED))] * 50)])


def test_a_text_model_takes_no_images(strict):
    with pytest.raises(openai.BadRequestError, match="image encoder") as error:
        strict.chat.completions.create(
            model="gemma-3-270m", messages=[question(image(png(4, 4, RED)))], max_tokens=1
        )
    assert error.value.param == "messages[0].content[0].image_url"
