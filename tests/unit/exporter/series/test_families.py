from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dracaena.exporter.series.families import MetricFamily, Sample, render

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"', "\\", "\n", "\\n", '\\"']
)
labels = st.dictionaries(st.sampled_from(["a", "b", "c_d"]), texts, max_size=3)
values = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53).map(float)


@given(texts, st.lists(st.tuples(labels, values), min_size=1, max_size=3))
def test_whatever_is_said_reads_back(help_text: str, samples: list[tuple[dict[str, str], float]]) -> None:
    family = MetricFamily("a_metric", "gauge", help_text, tuple(Sample(*each) for each in samples))
    text = render([family]).decode()
    (read,) = text_string_to_metric_families(text)
    assert [(sample.labels, sample.value) for sample in read.samples] == samples
    assert read.type == "gauge"


def test_a_family_without_samples_is_left_out() -> None:
    assert render([MetricFamily("a", "gauge", "", ())]) == b""


def test_numbers_that_are_none_have_prometheus_words() -> None:
    family = MetricFamily("a", "gauge", "", tuple(Sample({}, value) for value in (math.nan, math.inf, -math.inf)))
    assert [line.split()[1] for line in render([family]).decode().splitlines()[2:]] == ["NaN", "+Inf", "-Inf"]


def test_half_of_a_character_is_replaced() -> None:
    assert b'{pod="?"}' in render([MetricFamily("a", "gauge", "", (Sample({"pod": "\ud800"}, 1),))])
