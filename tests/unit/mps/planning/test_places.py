"""Where things are, and that sockets fit."""

from __future__ import annotations

from dracaena.mps.planning.places import SOCKET_PATH_BYTES, MpsPlaces, too_long
from dracaena.mps.settings import MpsSettings

GPU = "GPU-11111111-2222-3333-4444-555555555555"


def test_the_default_folder_leaves_room_for_sockets() -> None:
    places = MpsPlaces(MpsSettings().root)
    assert too_long(places) is None
    assert len(f"{places.client_pipes(GPU, 's_0123456789abcdef', 3)}/control") == len(places.longest_socket())


def test_a_folder_with_too_long_a_name_is_refused_with_the_number_of_bytes() -> None:
    room = SOCKET_PATH_BYTES - len(MpsPlaces("").longest_socket())
    assert too_long(MpsPlaces("/" * room)) is None
    assert "1 bytes too long" in (too_long(MpsPlaces("/" * (room + 1))) or "")
