"""Pictures: the resize equals Pillow's golden data, layouts are never guessed, odd types are refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processing.cases import DATA, picture

from oxygen.core.errors import InvalidInput
from oxygen.processing.images import as_picture, fitted_size, resize_with_pad

GOLDEN = np.load(DATA / "resize_with_pad.npz")
GEOMETRY = json.loads((DATA / "resize_report.json").read_text())["geometry"]


def test_enlarging_equals_openpi_exactly() -> None:
    resized = resize_with_pad(GOLDEN["in_100x37"], 224, 224)
    assert np.array_equal(resized, GOLDEN["client_pil_u8_100x37"])
    assert np.abs(resized.astype(int) - GOLDEN["jax_u8_100x37"]).max() <= 1


def test_shrinking_equals_openpi_exactly() -> None:
    # The first 80 of 480 rows make rows 0..27 of the picture's content; the last two lean on rows that were left out.
    band = resize_with_pad(GOLDEN["in_480x640_first_80_rows"], 224, 224)
    content = band[(224 - 28) // 2 :][:26]
    assert np.array_equal(content, GOLDEN["client_pil_u8_480x640_first_26_content_rows"])
    assert np.abs(content.astype(int) - GOLDEN["jax_u8_480x640_first_26_content_rows"]).max() <= 1
    column = resize_with_pad(GOLDEN["in_640x480_first_80_columns"], 224, 224)
    expected = GOLDEN["client_pil_u8_640x480_first_26_content_columns"]
    # Pillow chooses the order of its two passes by the picture's size, and rounds between them: one level here.
    assert np.abs(column[:, (224 - 28) // 2 :][:, :26].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("size", GEOMETRY)
def test_geometry_equals_openpi(size: str) -> None:
    height, width = map(int, size.split("x"))
    expected = GEOMETRY[size]
    assert list(fitted_size(height, width, 224, 224)) == expected["resized"]
    resized = resize_with_pad(np.full((height, width, 3), 255, dtype=np.uint8), 224, 224)
    filled = resized.any(axis=2)
    rows, columns = np.flatnonzero(filled.any(axis=1)), np.flatnonzero(filled.any(axis=0))
    assert [rows[0], rows[-1]] == expected["client_content_rows"]
    assert [columns[0], columns[-1]] == expected["client_content_cols"]


@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from([8, 14, 56]))
def test_any_size_keeps_white_inside_and_black_around(height: int, width: int, size: int) -> None:
    white = np.full((height, width, 3), 255, dtype=np.uint8)
    new_height, new_width = fitted_size(height, width, size, size)
    if not new_height or not new_width:
        with pytest.raises(InvalidInput, match="proportions"):
            resize_with_pad(white, size, size)
        return
    resized = resize_with_pad(white, size, size)
    assert resized.shape == (size, size, 3) and resized.dtype == np.uint8
    assert set(np.unique(resized)) <= {0, 255}
    assert (resized == 255).sum() == new_height * new_width * 3
    assert max(new_height, new_width) in (size, size - 1)  # truncation may lose one


def test_right_size_is_left_alone() -> None:
    image = picture(0)
    assert resize_with_pad(image, 224, 224) is image


@pytest.mark.parametrize("size", [(224, 224), (480, 640), (4, 4), (1, 7)])
def test_both_layouts_of_one_scene_agree(size: tuple[int, int]) -> None:
    image = picture(3, *size)
    assert np.array_equal(as_picture(image.transpose(2, 0, 1), "cam"), image)
    assert np.array_equal(as_picture(image, "cam"), image)


@pytest.mark.parametrize("shape", [(3, 224, 3), (3, 3, 3), (3, 1, 3)])
def test_uncertain_layouts_are_refused_naming_camera_and_shape(shape: tuple[int, ...]) -> None:
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    with pytest.raises(InvalidInput) as caught:
        as_picture(image, "wrist")
    assert caught.value.field == "wrist" and str(list(shape)) in caught.value.got
    assert np.array_equal(as_picture(image, "wrist", "HWC"), image)
    assert np.array_equal(as_picture(image, "wrist", "CHW"), image.transpose(1, 2, 0))


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((224, 224), np.uint8),
        np.zeros((224, 224, 1), np.uint8),
        np.zeros((224, 224, 4), np.uint8),
        np.zeros((1, 224, 224, 3), np.uint8),
        np.zeros((2, 224, 224, 3), np.uint8),
        np.zeros((0, 224, 3), np.uint8),
        np.zeros((224, 224, 3), np.uint16),
        np.zeros((224, 224, 3), np.int64),
        np.zeros((224, 224, 3), bool),
        np.zeros((224, 224, 3), complex),
        np.full((8, 8, 3), 255.0),
        np.full((8, 8, 3), -1.0),
        "not a picture",
        None,
    ],
)
def test_what_is_not_a_picture_is_refused_by_name(image: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        as_picture(image, "cam_high")
    assert caught.value.field == "cam_high"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_float_picture_with_one_bad_number_is_refused_with_its_place(bad: float) -> None:
    image = np.zeros((8, 9, 3), np.float32)
    image[2, 5, 1] = bad
    with pytest.raises(InvalidInput, match=r"\[2, 5, 1\]"):
        as_picture(image, "cam")


def test_float_pictures_are_truncated_as_openpi_does() -> None:
    golden = np.load(DATA / "u8_to_float.npz")
    values, expected = golden["client_convert_to_uint8_in"], golden["client_convert_to_uint8_out"]
    image = np.repeat(values[:, None, None], 3, axis=2)
    assert np.array_equal(as_picture(image, "cam")[:, 0, 0], expected)


def test_rounding_beyond_one_does_not_wrap_to_black() -> None:
    image = np.full((4, 4, 3), np.nextafter(np.float32(1), np.float32(2)))
    assert (as_picture(image, "cam") == 255).all()
    assert (as_picture(-np.full((4, 4, 3), 1e-7), "cam") == 0).all()
