"""Look-ups along the MRO see what was assigned since, and note whose attributes they read."""

from framefuse.capture.program.lookups import LOOKUPS, type_get
from framefuse.capture.program.markers import MISSING


class Left:
    name = 1


class Right:
    name = 2


def test_a_look_up_sees_later_changes_of_the_class_and_of_its_bases():
    class Child(Left):
        pass

    assert type_get(Child, "name") == 1
    assert Child in LOOKUPS.types
    Child.__bases__ = (Right,)
    assert type_get(Child, "name") == 2
    Child.name = 3
    assert type_get(Child, "name") == 3
    del Child.name
    assert type_get(Child, "name") == 2
    assert type_get(Child, "other") is MISSING
