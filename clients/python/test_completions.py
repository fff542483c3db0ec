"""client.completions"""

from conftest import MODEL


def test_completes_a_text(complete):
    reply = complete("One, two, three, four,")
    choice = reply.choices[0]
    assert reply.object == "text_completion"
    assert reply.model == MODEL
    assert reply.id.startswith("cmpl-")
    assert choice.index == 0
    assert choice.text.startswith(" five")
    assert choice.finish_reason == "length"
    assert reply.usage.completion_tokens == 8
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8


def test_streams_the_same_text(client, complete):
    whole = complete("One, two, three, four,")
    stream = client.completions.create(
        model=MODEL,
        prompt="One, two, three, four,",
        temperature=0,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


def test_echoes_the_prompt(complete):
    prompt = "One, two, three,"
    assert complete(prompt, echo=True, max_tokens=2).choices[0].text == prompt + complete(prompt, max_tokens=2).choices[0].text


def test_accepts_prompts_as_lists_and_token_ids(complete):
    # <bos> and an arbitrary token, whose text comes from the echo.
    tokens = [2, 5000]
    reply = complete([tokens, [2, 5001]], max_tokens=1, echo=True)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].text != reply.choices[1].text
    assert reply.choices[0].text == complete(tokens, max_tokens=1, echo=True).choices[0].text
    two = complete(["One, two,", "Red, green,"], n=2, max_tokens=1)
    assert [choice.index for choice in two.choices] == [0, 1, 2, 3]
    assert two.usage.completion_tokens == 4


def test_logit_bias_forces_and_bans_tokens(complete):
    piece = complete([2, 5000], max_tokens=1, echo=True, logit_bias={"5000": 100}).choices[0].text
    assert len(piece) % 2 == 0 and piece[: len(piece) // 2] * 2 == piece
    forced = complete("One, two,", max_tokens=3, logit_bias={"5000": 100}).choices[0].text
    assert forced == piece[: len(piece) // 2] * 3
    banned = complete([2, 5000], max_tokens=3, logit_bias={"5000": -100}).choices[0].text
    assert piece[: len(piece) // 2] not in banned


def test_penalties_reduce_repetition(complete):
    def green(**penalty):
        return complete("Red, green, red,", **penalty).choices[0].text.count("green")

    plain = green()
    assert plain >= 3
    for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"extra_body": {"repetition_penalty": 2}}):
        assert green(**penalty) < plain, penalty


def test_max_tokens_defaults_to_16(client):
    reply = client.completions.create(model=MODEL, prompt="One, two, three, four,", temperature=0)
    assert reply.usage.completion_tokens <= 16
    assert reply.usage.completion_tokens == 16 or reply.choices[0].finish_reason == "stop"
