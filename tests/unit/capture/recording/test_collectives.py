"""Collectives in compiled code, on two processes: each program runs once on both."""

import pytest
import torch.distributed as dist
from tests.unit import ranks
from tests.unit.capture.recording import collective_programs

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return ranks.outcomes(collective_programs.__name__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", collective_programs.PROGRAMS)
def test_program(outcomes, name):
    ranks.assert_passed(outcomes, name)
