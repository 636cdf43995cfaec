"""Options: every wrong value is a UserError that names the choices."""

import pytest

from framefuse.errors import UserError
from framefuse.options import MODES, TABLE, environment, resolve


def test_defaults_come_from_the_table(monkeypatch):
    for option in TABLE:
        monkeypatch.delenv(option.variable, raising=False)
    options = resolve(None)
    assert {option.name: options[option.name] for option in TABLE} == {o.name: o.default for o in TABLE}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mode": "fastest"}, MODES),
        ({"options": {"speed": 1}}, [option.name for option in TABLE]),
        ({"options": {"trace_limit": "many"}}, ["trace_limit", "int"]),
        ({"options": {"threads": 3}}, ["threads", "bool"]),
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
    assert resolve(None)["trace_limit"] == 3
    assert resolve({"trace_limit": 5})["trace_limit"] == 5
    monkeypatch.setenv("FRAMEFUSE_TRACE_LIMIT", "three")
    with pytest.raises(UserError, match="FRAMEFUSE_TRACE_LIMIT"):
        environment("trace_limit")
