"""Parents and depths of what is stored."""

from umbp.vllm.chains import KEYS_MAX, Chains


def test_a_request_goes_on_where_it_was_and_groups_have_chains_of_their_own() -> None:
    chains = Chains()
    assert chains.extend("r", ["a", "b"], [0, 0]) == ([None, "a"], [0, 1])
    assert chains.extend("r", ["x", "c", "y"], [1, 0, 1]) == ([None, "b", "x"], [0, 2, 1])
    assert chains.extend("other", ["a"], [0]) == ([None], [0])


def test_what_is_stored_behind_a_load_hangs_at_it() -> None:
    chains = Chains()
    chains.extend("r", ["old"], [0])
    chains.restart("r", ["a", "b"], [0, 0])
    assert chains.extend("r", ["c"], [0]) == (["b"], [2])


def test_a_request_that_comes_again_makes_no_ring() -> None:
    chains = Chains()
    chains.extend("r", ["a", "b", "c"], [0, 0, 0])
    assert chains.extend("r", ["a", "b", "c", "d"], [0] * 4) == ([None, "a", "b", "c"], [0, 1, 2, 3])
    assert chains.extend("r", ["b"], [0]) == (["a"], [1])


def test_requests_longest_without_news_are_forgotten() -> None:
    chains = Chains()
    half = [str(number) for number in range(KEYS_MAX // 2)]
    for request in ("first", "second", "third"):
        chains.extend(request, half, [0] * len(half))
    assert chains.extend("first", ["new"], [0]) == ([None], [0])
    assert chains.extend("third", ["new"], [0]) == ([half[-1]], [len(half)])


def test_one_request_beyond_the_bound_begins_anew() -> None:
    chains = Chains()
    keys = [str(number) for number in range(KEYS_MAX + 1)]
    assert chains.extend("r", keys, [0] * len(keys))[1][-1] == KEYS_MAX
    assert chains.extend("r", ["next"], [0]) == ([None], [0])
