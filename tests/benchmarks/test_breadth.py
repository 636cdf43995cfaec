"""Small models are made for the classes of a library, and measured apart from each other."""

import importlib.util
import os

import pytest
import torch

from benchmarks.breadth import breadth
from benchmarks.zoo import tiny_models

LACKING = any(importlib.util.find_spec(name) is None for name in ("transformers", "timm"))
pytestmark = pytest.mark.skipif(LACKING, reason="needs transformers and timm")


def test_parts_are_the_whole():
    everything = breadth.names()
    assert len(everything) == len(set(everything)) > 1500
    assert sorted(name for part in ("1/3", "2/3", "3/3") for name in breadth.part_of(everything, part)) == sorted(
        everything
    )


# autograd's threads for a GPU cannot be forked
BACKWARD = pytest.param(True, marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs a process without GPU"))


@pytest.mark.parametrize("gradients", [False, BACKWARD])
def test_a_model_is_whole_hits_and_equals_eager(gradients):
    row = breadth.apart(lambda: breadth.measure("transformers:BertModel", gradients), "BertModel")
    assert row["equal"] == "yes" and row["hit"] == "yes" and row["graphs"] == 1 and not row["breaks"], row
    said = breadth.findings([row])
    assert said[0].endswith("made here: 1 are whole, 1 have at most 3 breaks, 1 are equal")


def test_a_model_that_crashes_or_cannot_be_made_is_a_row():
    row = breadth.apart(lambda: os._exit(3), "it")
    assert row == {"model": "it", "equal": "not run: ended with status 768"}

    def unmade():
        raise tiny_models.NotMade("no way")

    assert breadth.apart(unmade, "it")["equal"] == "not run: NotMade: no way"


# Widths that depend on each other, a layer of each kind, no number of experts by default, labels for a loss.
@pytest.mark.parametrize(
    "name", ["Qwen2VLTextModel", "KimiLinearModel", "Dots1Model", "AlbertForSequenceClassification"]
)
def test_classes_whose_sizes_depend_on_each_other_are_made_small(name):
    made = tiny_models.tiny(name)
    assert sum(weight.numel() for weight in made.module.parameters()) < 10_000_000
    with torch.no_grad():
        result = made.module(**made.arguments(3, 2))
    assert ("loss" in result) == ("labels" in made.arguments(0, 1)) == name.endswith("Classification")
