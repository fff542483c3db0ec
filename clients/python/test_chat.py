"""client.chat.completions without streaming"""

from conftest import END, MODEL, QUESTION, say

COUNT = say("Count from one to ten in words.")


def test_completes_a_chat(greedy):
    reply = greedy(stop=END)
    choice = reply.choices[0]
    assert reply.object == "chat.completion"
    assert reply.model == MODEL
    assert reply.id.startswith("chatcmpl-")
    assert reply.id.endswith(reply._request_id)
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.message.content.endswith(" capital of ")
    assert choice.finish_reason == "stop"
    usage = reply.usage
    assert usage.prompt_tokens > 10
    assert 1 <= usage.completion_tokens <= 10
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_repeated_prompts_hit_the_prefix_cache(greedy):
    turns = [*say("Name a colour, please. " * 12), {"role": "assistant", "content": "Blue."}, *say("Another?")]
    greedy(turns, max_tokens=1)
    again = greedy(turns, max_tokens=1).usage
    assert again.prompt_tokens_details.cached_tokens > again.prompt_tokens // 2


def test_accepts_all_roles_and_content_parts(greedy):
    part = {"type": "text", "text": "What is the capital of France?"}
    parts = [{"role": "user", "content": [part]}]
    assert greedy(parts, max_tokens=4).choices == greedy(max_tokens=4).choices
    system, developer = (
        greedy([{"role": role, "content": "Be brief."}, *QUESTION], max_tokens=2) for role in ("system", "developer")
    )
    assert system.choices == developer.choices
    assert system.usage.prompt_tokens > greedy(max_tokens=1).usage.prompt_tokens


def test_stops_at_stop_strings(greedy):
    whole = greedy(COUNT, max_tokens=10).choices[0].message.content
    stop = whole.split()[1]
    for stops in (stop, ["never generated", stop]):
        choice = greedy(COUNT, max_tokens=10, stop=stops).choices[0]
        assert choice.message.content == whole[: whole.index(stop)]
        assert choice.finish_reason == "stop"


def test_stops_at_max_tokens(greedy):
    for limits in ({"max_tokens": 3}, {"max_tokens": 9, "max_completion_tokens": 3}):
        reply = greedy(COUNT, **limits)
        assert reply.usage.completion_tokens == 3
        assert reply.choices[0].finish_reason == "length"


def test_equal_seeds_give_equal_completions(greedy):
    def tale(seed):
        return greedy(say("Tell me a tale."), temperature=1.5, seed=seed, max_tokens=4).choices[0].message.content

    assert tale(1) == tale(1)
    assert tale(1) != tale(2)


def test_n_returns_several_choices(greedy):
    tale = {"messages": say("Tell me a tale."), "temperature": 1.5, "seed": 1, "max_tokens": 4}
    one, two = greedy(**tale), greedy(**tale, n=2)
    assert [choice.index for choice in two.choices] == [0, 1]
    first, second = (choice.message.content for choice in two.choices)
    assert first == one.choices[0].message.content
    assert first != second
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    assert two.usage.completion_tokens > one.usage.completion_tokens


def test_narrow_samplers_pick_the_most_probable_token(greedy):
    best = greedy(COUNT, max_tokens=5).choices[0].message.content
    for narrow in ({"top_p": 0}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1}}):
        assert greedy(COUNT, max_tokens=5, temperature=1.5, **narrow).choices[0].message.content == best


def test_response_id_contains_the_request_id(client):
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=1)
    assert raw.parse().id == f"chatcmpl-{raw.headers['x-request-id']}"
