from __future__ import annotations

from dracaena.kubelet_plugin.discovery.vm.vfio_drivers import best_vfio_module

GRACE = "pci:v000010DEd00002342sv000010DEsd000016EBbc03sc02i00"
H100 = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
ALIASES = """\
# Aliases extracted from modules themselves.
alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci
""".splitlines()


def test_the_alias_with_the_fewest_wildcards_names_the_module_whatever_their_order() -> None:
    for lines in (ALIASES, ALIASES[::-1]):
        assert best_vfio_module(GRACE, lines) == "nvgrace_gpu_vfio_pci"
        assert best_vfio_module(H100, lines) == "vfio_pci"


def test_of_equally_exact_aliases_the_first_by_name_counts() -> None:
    lines = [f"alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* {name}" for name in ("b_vfio_pci", "a_vfio_pci")]
    assert best_vfio_module(GRACE, lines) == "a_vfio_pci"


def test_without_a_word_of_it_any_function_gets_vfio_pci() -> None:
    for lines in ([], ["alias", "alias vfio_pci:[ x", "\0" * 500, ALIASES[1]]):
        assert best_vfio_module(GRACE, lines) == "vfio_pci"
    assert best_vfio_module("", ALIASES) == "vfio_pci"
