"""A sample of what tools/damage.py does 10,000 times: no damaged file of the cache is used, and none is an error."""

import random

import pytest

import damage
from damage import Caches, damage_archives, damage_files, damage_objects, replace_files, spoil_folders
from framefuse.codegen.llvm import compile as llvm
from framefuse.driver.calls import calls
from framefuse.driver.programs import programs


@pytest.fixture
def caches(tmp_path, monkeypatch):
    for module in (calls, programs, llvm):
        monkeypatch.setattr(module, "PROCESS", module.PROCESS)  # put back at the end
    return Caches(tmp_path)


def test_damaged_files_of_the_folders_are_not_read(caches, monkeypatch):
    monkeypatch.setattr(damage, "CALLS", 40)
    assert damage_files(caches, 400, random.Random(1)) == 10
    assert all(folder.names() for folder in caches.folders.values())


def test_damaged_saved_files_are_not_loaded(caches):
    damage_archives(caches, 400, random.Random(2))


def test_damaged_objects_are_refused_or_harmless(caches):
    assert damage_objects(caches, 400, random.Random(4)) > 400


def test_what_is_no_file_of_ours_is_not_read(caches, monkeypatch):
    monkeypatch.setattr(damage, "CALLS", 40)
    replace_files(caches, 200, random.Random(3))


def test_folders_that_are_gone_or_signed_by_another_key(caches, monkeypatch):
    monkeypatch.setattr(damage, "SURROUNDINGS", (damage.a_file, damage.another_key))
    assert spoil_folders(caches) == 8
