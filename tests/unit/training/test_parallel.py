"""Data-parallel training with compiled code, on two processes: each program runs once on both."""

import pytest
import torch.distributed as dist
from tests.unit import ranks
from tests.unit.training import parallel_programs

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return ranks.outcomes(parallel_programs.__name__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", parallel_programs.PROGRAMS)
def test_program(outcomes, name):
    ranks.assert_passed(outcomes, name)
