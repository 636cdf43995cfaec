"""Options: every wrong value is a UserError that names the choices."""

from dataclasses import FrozenInstanceError, fields

import pytest

from framefuse.errors import UserError
from framefuse.options import BY_NAME, MODES, TABLE, Options, environment, resolve


def test_defaults_come_from_the_table(monkeypatch):
    for option in TABLE:
        monkeypatch.delenv(option.variable, raising=False)
    options = resolve(None)
    assert {option.name: getattr(options, option.name) for option in TABLE} == {o.name: o.default for o in TABLE}


def test_a_row_has_a_sentence_and_a_variable_and_cannot_be_changed():
    assert len(TABLE) == len(BY_NAME) == len(fields(Options)) - 3  # dynamic, fullgraph and mode are no options
    for option in TABLE:
        assert option.text.endswith(".") and option.variable == "FRAMEFUSE_" + option.name.upper()
        assert type(option.default) is option.type and (not option.choices or option.default in option.choices)
    options = resolve({"trace_limit": 5}, mode="max-autotune", dynamic=False)
    assert options.graphs and options.measures and options.dynamic is False and not options.exact
    with pytest.raises(FrozenInstanceError):
        options.trace_limit = 6


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mode": "fastest"}, MODES),
        ({"options": {"speed": 1}}, [option.name for option in TABLE]),
        ({"options": {"trace_limit": "many"}}, ["trace_limit", "Give a whole number"]),
        ({"options": {"threads": 3}}, ["threads", "Give True or False"]),
        ({"options": {"log": "everything"}}, ["'calls'", "'graphs'"]),
        ({"options": [("threads", True)]}, ["dict"]),
        ({"dynamic": "yes"}, ["None, True or False"]),
    ],
)
def test_a_wrong_value_names_the_choices(arguments, expected):
    options = arguments.pop("options", None)
    with pytest.raises(UserError) as caught:
        resolve(options, **arguments)
    assert all(part in str(caught.value) for part in expected)


def test_environment(monkeypatch):
    monkeypatch.setenv("FRAMEFUSE_THREADS", "0")
    monkeypatch.setenv("FRAMEFUSE_TRACE_LIMIT", "3")
    assert environment("threads") is False
    assert resolve(None).trace_limit == 3
    assert resolve({"trace_limit": 5}).trace_limit == 5
    monkeypatch.setenv("FRAMEFUSE_TRACE_LIMIT", "three")
    with pytest.raises(UserError, match="FRAMEFUSE_TRACE_LIMIT"):
        environment("trace_limit")
