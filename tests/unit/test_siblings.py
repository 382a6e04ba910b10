"""Generic package names: the ones beside accel, or a clear word about what shadows them."""

import pytest

from accel.errors import AccelError, nearest
from accel.siblings import check_siblings


def test_the_shipped_packages_are_found():
    check_siblings()


def test_a_shadowed_package_is_named_with_both_paths(tmp_path):
    with pytest.raises(AccelError, match=r"import caching.*instead of.*caching"):
        check_siblings(tmp_path)


def test_nearest_names_are_offered_only_when_close():
    assert nearest("balancd", ["balanced", "fast"]) == " Did you mean 'balanced'?"
    assert nearest("xyz", ["balanced", "fast"]) == ""
