"""However a text is cut into pieces, it ends before one of some sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.tools import StopFilter

texts = st.text("ab", max_size=20)
stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(texts, stops, st.integers(1, 5))
def test_the_text_ends_before_a_sequence(text: str, sequences: list[str], size: int) -> None:
    stop = StopFilter(sequences)
    passed = "".join(stop.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert stop.has_stopped == any(sequence in text for sequence in sequences)
    if stop.has_stopped:
        assert stop.feed("more") == stop.flush() == ""
        assert not any(sequence in passed for sequence in sequences)
        assert text.startswith(passed)
        assert text[len(passed) :].startswith(tuple(sequences))
    else:
        assert passed + stop.flush() == text
