"""Tables of `npu-smi info` of several generations, as published in public reports of such machines (A2, A3), or after their form (SICK, INFERENCE)."""

from __future__ import annotations

import re

import pytest

from vime.npu_smi import Chip, parse

A2 = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B1               | OK            | 89.1        32                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3437 / 65536         |
+===========================+===============+====================================================+
| 1     910B1               | Warning       | 90.0        33                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          59351/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
| 1       0                 | 824166        | VLLMWorker_TP            | 55916                   |
+===========================+===============+====================================================+
"""
A3 = """
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc2                            Version: 26.0.rc2                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| 5     Ascend910           | OK            | 162.6                34                      0    / 0                |
| 0     10                  | 0000:9D:00.0  | 0                    0    / 0                3419 / 65536            |
+------------------------------------------------------------------------------------------------------------------+
| 5     Ascend910           | OK            | -                    34                      0    / 0                |
| 1     11                  | 0000:9F:00.0  | 0                    0    / 0                2874 / 65536            |
+===========================+===============+======================================================================+
"""


SICK = "| 0                         | NA            | NA          NA   / NA         NA   / NA            |"
INFERENCE = """
| npu-smi 23.0.rc2                                 Version: 23.0.rc2                                     |
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 1       310P3                 | OK              | NA           49                0     / 0             |
| 0       2                     | 0000:81:00.0    | 0            1553 / 21527                            |
| 1       310P3                 | OK              | NA           49                0     / 0             |
| 1       3                     | 0000:81:00.0    | 0            1353 / 21527                            |
+===============================+=================+======================================================+
"""


def test_one_chip_an_npu():
    smi = parse(A2)
    assert smi.driver == "24.1.0"
    assert smi.chips == (
        Chip(0, 0, 0, "910B1", "OK", "0000:C1:00.0", 3437, 65536),
        Chip(1, 1, 0, "910B1", "Warning", "0000:01:00.0", 59351, 65536),
    )


def test_two_chips_an_npu_have_physical_numbers_of_their_own():
    smi = parse(A3)
    assert smi.driver == "26.0.rc2"
    assert [(chip.device, chip.npu, chip.chip, chip.name) for chip in smi.chips] == [(10, 5, 0, "Ascend910"), (11, 5, 1, "Ascend910")]


@pytest.mark.parametrize("text", ["", "npu-smi: command failed", "dcmi module initialize failed. ret is -8005", A2[:200], A2.replace("|", "")])
def test_other_texts_have_no_chips(text):
    assert parse(text).chips == ()


def test_a_sick_chip_is_kept_with_its_health():
    sick = re.sub(r".*0000:01:00.0.*", SICK, A2).replace("Warning ", "Critical")
    assert parse(sick).chips[1] == Chip(1, 1, 0, "910B1", "Critical", "NA", None, None)


def test_the_memory_that_a_card_has_counts():
    older = A2.replace("0    / 0          3437 / 65536", "1944 / 15137      0    / 0    ")
    assert (parse(older).chips[0].used_mb, parse(older).chips[0].total_mb) == (1944, 15137)


def test_an_inference_card_numbers_its_chips_by_device():
    assert [(chip.device, chip.npu, chip.chip, chip.total_mb) for chip in parse(INFERENCE).chips] == [(2, 1, 0, 21527), (3, 1, 1, 21527)]
    assert parse(INFERENCE.replace("\n", "\r\n")) == parse(INFERENCE)


def test_a_torn_row_is_left_out():
    torn = A2.replace("59351/ 65536", "59351")
    assert [chip.device for chip in parse(torn).chips] == [0]


def test_devices_come_by_their_numbers():
    turned = A3.replace("| 0     10 ", "| 0     12 ")
    assert [chip.device for chip in parse(turned).chips] == [11, 12]
