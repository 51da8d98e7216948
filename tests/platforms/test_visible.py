"""Visible devices: numbers as numbers, never a device the caller may not use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.errors import UserError
from vime.platforms.visible import VisibleDevices, in_order, parse

NPU = "ASCEND_RT_VISIBLE_DEVICES"


def test_without_the_variable_every_device_is_visible():
    assert VisibleDevices.read(NPU, {}, 16).value == ",".join(map(str, range(16)))


def test_the_variable_says_which_and_in_what_order():
    visible = VisibleDevices.read(NPU, {NPU: " 11, 2,07"}, 16)
    assert visible.physical == ("11", "2", "7")
    assert visible.of(1) == "2"
    assert visible.local("7") == 2
    assert visible.subset([2, 0]).value == "7,11"


def test_an_empty_variable_means_no_device():
    assert len(VisibleDevices.read(NPU, {NPU: ""}, 8)) == 0


def test_numbers_sort_as_numbers():
    assert in_order(["10", "2", "GPU-b", "1", "GPU-a"]) == ["1", "2", "10", "GPU-a", "GPU-b"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0,1,1", r"device 1 is named twice"),
        ("0,01,1", r"device 1 is named twice"),
        ("0,,1", r"an entry is empty"),
        ("-1", r"'-1' is neither a device number nor a UUID"),
        ("0-3", r"'0-3' is neither"),
        ("all", r"'all' is neither"),
        ("²", r"'²' is neither"),
    ],
)
def test_what_cannot_be_read_is_refused_with_variable_and_value(text, says):
    with pytest.raises(UserError, match=rf"{NPU}='{text}'.*{says}"):
        parse(NPU, text)


def test_a_device_that_is_not_visible_is_refused():
    visible = VisibleDevices(NPU, ("4", "5"))
    with pytest.raises(UserError, match=r"device 2 is not visible: ASCEND_RT_VISIBLE_DEVICES=4,5 has 2 device"):
        visible.of(2)
    with pytest.raises(UserError, match="device 0 is not visible"):
        visible.local("0")


@given(st.lists(st.integers(0, 63), unique=True, min_size=1), st.data())
def test_a_subset_never_grows_and_keeps_physical_numbers(ids, data):
    visible = VisibleDevices.read(NPU, {NPU: ",".join(map(str, ids))}, 64)
    chosen = data.draw(st.lists(st.sampled_from(range(len(ids))), unique=True))
    subset = visible.subset(chosen)
    assert [int(name) for name in subset.physical] == [ids[index] for index in chosen]
    assert all(visible.of(visible.local(name)) == name for name in subset.physical)
