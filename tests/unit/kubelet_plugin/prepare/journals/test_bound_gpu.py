from __future__ import annotations

import pytest

from dracaena.kubelet_plugin.prepare.journals.bound_gpu import (
    BoundGpu,
    HostFunction,
    decode_bound_gpu,
    encode_bound_gpu,
    functions_text,
    host_functions,
)


def test_functions_are_read_as_they_were_written() -> None:
    functions = (
        HostFunction("0000:18:00.0", "nvidia"),
        HostFunction("0000:18:00.1", "", "none"),
        HostFunction("0000:18:00.2", ""),
        HostFunction("0000:18:00.3", "pci-stub", "pci-stub"),
    )
    text = functions_text(functions)
    assert text == "0000:18:00.0=nvidia 0000:18:00.1==none 0000:18:00.2= 0000:18:00.3=pci-stub=pci-stub"
    assert host_functions(text) == functions
    assert decode_bound_gpu(encode_bound_gpu(BoundGpu("boot-1", text))) == BoundGpu("boot-1", text)


def test_the_record_of_a_release_that_knew_no_overrides_is_read() -> None:
    data = b'{"version":1,"boot_id":"b","functions":"0000:18:00.0=nvidia 0000:18:00.1="}'
    assert host_functions(decode_bound_gpu(data).functions) == (
        HostFunction("0000:18:00.0", "nvidia"),
        HostFunction("0000:18:00.1", ""),
    )


@pytest.mark.parametrize("data", [b"", b"[]", b'{"version":2,"boot_id":"b","functions":""}'])
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"truncated|Expected `object`|version 2, expected 1"):
        decode_bound_gpu(data)
