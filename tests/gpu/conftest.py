"""Tests in this folder need a CUDA device, and say so where there is none."""

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def _cuda_device() -> None:
    if torch.cuda.is_available():
        return
    if os.environ.get("OMNIWIRE_REQUIRE_GPU") == "1":
        pytest.fail("OMNIWIRE_REQUIRE_GPU=1, but torch finds no CUDA device")
    pytest.skip("torch finds no CUDA device")
