"""The table of addresses keeps no stream alive and is uploaded by one thread alone."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from MiniCPMO45.kernels.stream_memory import StreamTable


def new_table() -> StreamTable:
    return StreamTable(2, {"address": 1}, torch.device("cpu"))


def test_a_released_table_keeps_no_memory_of_its_streams() -> None:
    table, memory = new_table(), [torch.zeros(4), torch.zeros(4)]
    table.upload({"address": memory})
    assert table["address"][:, 0].tolist() == [tensor.data_ptr() for tensor in memory]
    watched = [weakref.ref(tensor) for tensor in memory]
    memory.clear()
    table.release()
    assert [ref() for ref in watched] == [None, None]


def test_addresses_are_uploaded_by_one_thread_alone() -> None:
    table, memory = new_table(), [torch.zeros(4), torch.zeros(4)]
    table.upload({"address": memory})
    with ThreadPoolExecutor(1) as pool:
        uploading = pool.submit(table.upload, {"address": memory})
        with pytest.raises(AssertionError, match="one thread"):
            uploading.result()
